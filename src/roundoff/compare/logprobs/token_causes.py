"""Causes that are no numbers: another token at the same place, or log-probabilities that belong to a neighbour."""

from __future__ import annotations

import numpy as np

from roundoff.compare.logprobs.explanation import Cause, CauseExplanation, nats
from roundoff.compare.logprobs.logprob_table import Array, describe_key
from roundoff.compare.logprobs.paired_tokens import PairedTokens, rms
from roundoff.runs import JsonValue
from roundoff.words import plural

_SHIFTS = (1, -1, 2, -2)
_MIN_SHARE = 0.9
_CLEAR = 0.1


def different_tokens(pairs: PairedTokens) -> CauseExplanation | None:
    """Say how the tokens at the same keys differ: by a shift of positions, or by their ids; None if they do not."""
    differs = ~pairs.has_same_token
    num_different = int(differs.sum())
    if not num_different:
        return None
    share = num_different / len(pairs)
    before = rms(pairs.difference[pairs.is_finite])
    some = pairs.subset
    for shift in _SHIFTS:
        rows, others = _pair_with_shift(some, shift)
        is_same = some.candidate.tokens[rows] == some.reference.tokens[others]
        if len(rows) and is_same.mean() > max(_MIN_SHARE, 1 - share):
            left = some.candidate.logprobs[rows].astype(np.float64) - some.reference.logprobs[others]
            left = left[is_same & np.isfinite(left)]
            return _off_by(
                shift, "tokens", before, rms(left), f"{100 * is_same.mean():.3g} % of the tokens are the same"
            )
    return _tokenisation(pairs, differs, before)


def _tokenisation(pairs: PairedTokens, differs: Array, before: float) -> CauseExplanation:
    row = int(np.flatnonzero(differs)[0])
    samples = pairs.reference.samples
    num_samples, num_bad = len(np.unique(samples)), len(np.unique(samples[differs]))
    where = describe_key(pairs.reference, row)
    tokens = int(pairs.reference.tokens[row]), int(pairs.candidate.tokens[row])
    same = ~differs & pairs.is_finite
    numbers: dict[str, JsonValue] = {
        "num_different": int(differs.sum()),
        "num_samples": num_bad,
        "first_sample": pairs.reference.sample_name(row),
        "first_position": int(pairs.reference.positions[row]),
        "only_in_reference": pairs.num_only_reference,
        "only_in_candidate": pairs.num_only_candidate,
    }
    proof = [
        f"{100 * differs.mean():.2g} % of the tokens differ, in {num_bad} of {plural(num_samples, 'sample')}; the "
        f"first is {where}: token {tokens[0]} in the reference, {tokens[1]} in the candidate",
    ]
    if pairs.num_only_reference or pairs.num_only_candidate:
        lengths = f"{pairs.num_only_reference} and {pairs.num_only_candidate}"
        proof.append(f"{lengths} tokens are in one of the tables only, so that samples have different lengths")
    if same.any():
        proof.append(f"where the tokens are the same, the difference is {nats(rms(pairs.difference[same]))}")
    return CauseExplanation(
        cause=Cause.TOKENISATION,
        title="the engines have different tokens at the same places",
        proof=tuple(proof),
        fix="pass token ids from one engine to the other; text that is tokenised again may give other tokens",
        before=before,
        after=rms(pairs.difference[same]),
        confidence=0.95,
        numbers=numbers,
    )


def shifted_logprobs(pairs: PairedTokens, *, limit: float) -> CauseExplanation | None:
    """Say that log-probabilities belong to a neighbouring token, where that makes the two sides agree."""
    some = pairs.subset
    before = rms(some.difference[some.is_finite])
    for shift in _SHIFTS:
        rows, others = _pair_with_shift(some, shift)
        left = some.candidate.logprobs[rows].astype(np.float64) - some.reference.logprobs[others]
        left = left[np.isfinite(left)]
        after = rms(left)
        if len(left) and before > limit and after**2 < _CLEAR * before**2:
            return _off_by(shift, "log-probabilities", before, after, "the tokens themselves are the same")
    return None


def _pair_with_shift(pairs: PairedTokens, shift: int) -> tuple[Array, Array]:
    """Return rows, and for each the row of the same sample whose position is larger by `shift`."""
    rows = np.arange(max(0, -shift), len(pairs) - max(0, shift))
    samples, positions = pairs.reference.samples, pairs.reference.positions.astype(np.int64)
    is_next = (samples[rows] == samples[rows + shift]) & (positions[rows + shift] - positions[rows] == shift)
    return rows[is_next], rows[is_next] + shift


def _off_by(shift: int, what: str, before: float, after: float, also: str) -> CauseExplanation:
    way = "after" if shift > 0 else "before"
    return CauseExplanation(
        cause=Cause.OFF_BY_ONE,
        title=f"the candidate's {what} are shifted by {plural(abs(shift), 'position')}",
        proof=(
            f"with each of the candidate's {what} compared with the reference's {plural(abs(shift), 'position')} {way} "
            f"it, the difference falls from {nats(before)} to {nats(after)}",
            also,
        ),
        fix="the logits at one position predict the token at the next: shift the labels on both sides alike",
        before=before,
        after=after,
        confidence=0.97,
        numbers={"shift": shift},
    )
