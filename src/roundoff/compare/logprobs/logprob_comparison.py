"""Compares the log-probabilities that two engines gave the same tokens: noise of the formats, or a proven cause."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from roundoff.compare.logprobs.explanation import MATTERS, Cause, CauseExplanation, nats
from roundoff.compare.logprobs.format_noise import FormatNoise, expect_noise
from roundoff.compare.logprobs.group_causes import find_flips, lag_of, other_weights, router_flips, touched_samples
from roundoff.compare.logprobs.logprob_table import Array, LogprobTable, describe_key
from roundoff.compare.logprobs.paired_tokens import PairedTokens, RatioStatistics, measure_ratios, pair_tables, rms
from roundoff.compare.logprobs.sampling_causes import narrow_head, proven_by_distributions, seen_in_tokens
from roundoff.compare.logprobs.token_causes import different_tokens, shifted_logprobs
from roundoff.compare.shown_comparison import ShownComparison
from roundoff.errors import CompareError
from roundoff.words import plural

_NUM_WORST = 20
_MANY_WITHOUT_CHANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstToken:
    """A token that the engines disagree about."""

    sample: str
    position: int
    token: int
    reference: float
    candidate: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LogprobComparison(ShownComparison):
    """What two tables have in common, how far they are apart, and why."""

    reference: str
    candidate: str
    num_tokens: int
    """How many tokens both have."""
    num_only_reference: int
    num_only_candidate: int
    num_impossible: int
    """How many tokens one of the engines gives no chance at all."""
    statistics: RatioStatistics
    noise: FormatNoise
    explanation: CauseExplanation | None
    """None if the formats explain the difference."""
    share_flipped: float | None
    """The share of tokens with other experts; None if a table does not say."""
    versions_behind: int | None
    """By how many versions the candidate is behind at most; None if a table does not say."""
    worst: tuple[WorstToken, ...]

    @property
    def differs(self) -> bool:
        """Whether the engines differ by more than their formats explain."""
        return self.explanation is not None


def compare_logprobs(reference: LogprobTable, candidate: LogprobTable) -> LogprobComparison:
    """Compare the tables of two engines: of the trainer, and of the engine that made the samples.

    Raises:
        CompareError: the tables have no token in common, or a key twice.
    """
    pairs = pair_tables(reference, candidate)
    explanation = different_tokens(pairs)
    same = pairs if pairs.has_same_token.all() else pairs.take(np.flatnonzero(pairs.has_same_token))
    if not len(same):
        same = pairs
    finite = same.difference if same.is_finite.all() else same.difference[same.is_finite]
    if not len(finite):
        raise CompareError.explain(
            f"'{reference.name}' and '{candidate.name}' have no token with two finite log-probabilities.",
            why=f"the first is {describe_key(same.reference, 0)}: {same.reference.logprobs[0]:g} and "
            f"{same.candidate.logprobs[0]:g}.",
        )
    noise = expect_noise(same)
    if explanation is None:
        explanation = _explain(same, noise)
    flips, lag = find_flips(same), lag_of(same)
    return LogprobComparison(
        reference=reference.name,
        candidate=candidate.name,
        num_tokens=len(pairs),
        num_only_reference=pairs.num_only_reference,
        num_only_candidate=pairs.num_only_candidate,
        num_impossible=len(same) - len(finite),
        statistics=measure_ratios(finite),
        noise=noise,
        explanation=explanation,
        share_flipped=None if flips is None else float(flips.mean()),
        versions_behind=None if lag is None else int(lag.max()),
        worst=_worst(same),
    )


def _explain(pairs: PairedTokens, noise: FormatNoise) -> CauseExplanation | None:
    """Return the cause: first what reproduces the numbers, then what touches some samples, weights, and the rest."""
    total, limit = rms(pairs.difference[pairs.is_finite]), noise.limit
    if not pairs.is_finite.all() and (~pairs.is_finite).mean() > _MANY_WITHOUT_CHANCE:
        return _impossible(pairs)
    if total < MATTERS:
        return None
    proven = proven_by_distributions(pairs, limit=limit)
    clean = next((each for each in proven if each.after is not None and each.after <= limit), None)
    return (
        shifted_logprobs(pairs, limit=limit)
        or clean
        or touched_samples(pairs, limit=limit)
        or other_weights(pairs, limit=limit)
        or router_flips(pairs, limit=limit)
        or next(iter(proven), None)
        or next(iter(seen_in_tokens(pairs)), None)
        or narrow_head(pairs, limit=limit)
        or (_unknown(pairs, total, noise) if total > limit else None)
    )


def _impossible(pairs: PairedTokens) -> CauseExplanation:
    """Say that an engine gives no chance to tokens that the other one chose, as truncation does."""
    infinite = np.isneginf(pairs.reference.logprobs), np.isneginf(pairs.candidate.logprobs)
    side = "reference" if infinite[0].sum() >= infinite[1].sum() else "candidate"
    rows = infinite[0] if side == "reference" else infinite[1]
    row = int(np.flatnonzero(rows)[0])
    table = pairs.reference
    before = rms(pairs.difference[pairs.is_finite])
    return CauseExplanation(
        cause=Cause.TOP_P,
        title=f"only the {side} truncates its distribution, with top-p or top-k",
        proof=(
            f"there the log-probability of {plural(int(rows.sum()), 'token')} of {len(pairs)} is "
            f"-infinity, the first {describe_key(table, row)}; the others differ by {nats(before)}",
        ),
        fix="take the log-probabilities before truncation on both sides",
        before=math.inf,
        after=before,
        confidence=0.9,
        numbers={"num_impossible": int(rows.sum()), "side": side},
    )


def _unknown(pairs: PairedTokens, total: float, noise: FormatNoise) -> CauseExplanation:
    some = pairs.subset
    by_sample = [rms(some.difference[part][some.is_finite[part]]) for part in some.samples()]
    good = float(np.mean(np.array(by_sample) <= noise.limit))
    proof = [
        f"the difference is {nats(total)}; {noise.reference_dtype} and {noise.candidate_dtype} explain up to "
        f"{nats(noise.limit)}",
        f"{100 * good:.3g} % of the samples are within that",
        "no temperature, truncation or penalty, shift, padding, batch or routing in these tables explains it",
    ]
    wanted = [what for what, missing in _missing(pairs).items() if missing]
    fix = "compare the weights of the two engines"
    if wanted:
        fix = (
            f"write {', '.join(wanted)} into both tables, and compare again: other weights are the most frequent cause"
        )
    return CauseExplanation(
        cause=Cause.UNKNOWN,
        title="the engines differ by more than their formats explain",
        proof=tuple(proof),
        fix=fix,
        before=total,
        after=total,
        confidence=0.5,
        numbers={"share_of_good_samples": good},
    )


def _missing(pairs: PairedTokens) -> dict[str, bool]:
    tables = pairs.reference, pairs.candidate
    return {
        "weights": any(not table.facts.weights for table in tables),
        "version": any(table.version is None for table in tables),
        "top_tokens and top_logprobs": all(table.top_logprobs is None and table.logits is None for table in tables),
        "padding": pairs.candidate.padding is None,
    }


def _worst(pairs: PairedTokens) -> tuple[WorstToken, ...]:
    """Return the tokens that differ most, the worst first."""
    sizes = np.abs(pairs.difference)
    sizes = np.where(np.isnan(sizes), 0.0, sizes) if not pairs.is_finite.all() else sizes
    num = min(_NUM_WORST, len(sizes))
    rows: Array = np.argpartition(-sizes, num - 1)[:num]
    return tuple(
        WorstToken(
            sample=pairs.reference.sample_name(row),
            position=int(pairs.reference.positions[row]),
            token=int(pairs.reference.tokens[row]),
            reference=float(pairs.reference.logprobs[row]),
            candidate=float(pairs.candidate.logprobs[row]),
        )
        for row in rows[np.argsort(-sizes[rows])].tolist()
    )
