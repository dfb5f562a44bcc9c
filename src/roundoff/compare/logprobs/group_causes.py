"""Causes that touch some tokens and leave others alone: padding, batches, experts, versions; and other weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from roundoff.compare.logprobs.explanation import MATTERS, Cause, CauseExplanation, nats
from roundoff.compare.logprobs.fingerprints import WeightDifferences, compare_weights, describe_wrong
from roundoff.compare.logprobs.logprob_table import Array, EngineFacts
from roundoff.compare.logprobs.paired_tokens import PairedTokens, rms
from roundoff.runs import JsonValue
from roundoff.words import join_names, join_words, plural

_MIN_TOKENS = 30
_NEARLY_ALL = 0.8
_NOT_BY_CHANCE = 100
"""There must be this many ways to choose the samples that are not touched."""
_TIMES = 3.0
"""Tokens that are touched must differ by this many times as much as the others."""
_TIMES_FLIPPED = 2.0
_MOST = 0.25
"""Tokens with other experts must make up this part of the squared differences themselves."""


def touched_samples(pairs: PairedTokens, *, limit: float) -> CauseExplanation | None:
    """Return what separates samples that differ from samples that agree, padding or batches, or None."""
    return _padding(pairs, limit) or _batch(pairs, limit)


def _separates(
    pairs: PairedTokens, touches: Callable[[PairedTokens], Array], limit: float
) -> tuple[float, float] | None:
    """Return how far touched tokens and the others are apart, if nearly all samples of the first alone differ.

    Samples are counted, not tokens: one odd sample has many odd tokens.
    """
    some = pairs.subset
    touched = touches(some)
    limit = max(limit, MATTERS)
    by_sample = [
        (bool(touched[part.start]), rms(some.difference[part][some.is_finite[part]]) > limit) for part in some.samples()
    ]
    num_touched = sum(is_touched for is_touched, _ in by_sample)
    num_others = len(by_sample) - num_touched
    num_bad = sum(is_bad for is_touched, is_bad in by_sample if is_touched)
    num_bad_others = sum(is_bad for is_touched, is_bad in by_sample if not is_touched)
    is_by_chance = math.comb(len(by_sample), num_others) < _NOT_BY_CHANCE
    if is_by_chance or num_bad < _NEARLY_ALL * num_touched or num_bad_others > (1 - _NEARLY_ALL) * num_others:
        return None
    before, after = (rms(some.difference[mask & some.is_finite]) for mask in (touched, ~touched))
    return (before, after) if before > _TIMES * after else None


def _exceeds(pairs: PairedTokens, *, side: str, column: str, than: int) -> Array:
    return np.asarray(getattr(getattr(pairs, side), column) > than)


def _padding(pairs: PairedTokens, limit: float) -> CauseExplanation | None:
    for side in ("candidate", "reference"):
        padding = getattr(pairs, side).padding
        if padding is None:
            continue
        found = _separates(pairs, functools.partial(_exceeds, side=side, column="padding", than=0), limit)
        if found:
            before, after = found
            return CauseExplanation(
                cause=Cause.PADDING,
                title=f"the {side}'s log-probabilities depend on padding",
                proof=(f"tokens of samples with padding differ by {nats(before)}, those of others by {nats(after)}",),
                fix="mask padding in attention, and count positions from the first real token",
                before=before,
                after=after,
                confidence=0.95,
                numbers={"side": side, "share_padded": float((padding > 0).mean())},
            )
    return None


def _batch(pairs: PairedTokens, limit: float) -> CauseExplanation | None:
    for side in ("candidate", "reference"):
        sizes = getattr(pairs, side).batch_size
        if sizes is None or sizes.min() == sizes.max():
            continue
        small = int(sizes.min())
        found = _separates(pairs, functools.partial(_exceeds, side=side, column="batch_size", than=small), limit)
        if found:
            before, after = found
            return CauseExplanation(
                cause=Cause.BATCH,
                title=f"the {side}'s log-probabilities depend on the other samples of a batch",
                proof=(
                    f"tokens computed in batches of more than {small} differ by {nats(before)}, those in batches of "
                    f"{small} by {nats(after)}",
                ),
                fix="look for a step that mixes samples: a cache slot, a mask or a norm over the batch",
                before=before,
                after=after,
                confidence=0.9,
                numbers={"side": side, "smallest_batch": small},
            )
    return None


def router_flips(pairs: PairedTokens, *, limit: float) -> CauseExplanation | None:
    """Say that tokens with other experts differ more than the others, and enough to matter; None if they do not."""
    flips = find_flips(pairs)
    if flips is None or not flips.any():
        return None
    clean = _before_first(pairs, flips)
    clean = clean if (clean & pairs.is_finite).sum() >= _MIN_TOKENS else ~flips
    total, before, after = (
        rms(pairs.difference[mask & pairs.is_finite]) for mask in (np.ones_like(flips), flips, clean)
    )
    # Earlier flips, also those in prompts, reach later tokens through attention: the others need not be clean.
    is_most = before**2 * flips.mean() > _MOST * total**2
    if total <= limit or before < _TIMES_FLIPPED * after or not is_most:
        return None
    return CauseExplanation(
        cause=Cause.ROUTER_FLIPS,
        title="the engines send tokens to different experts",
        proof=(
            f"{100 * flips.mean():.2g} % of the tokens have other experts in at least one layer and differ by "
            f"{nats(before)}; tokens with no such token before them in their sample differ by {nats(after)}",
        ),
        fix="replay the rollout engine's routing in the trainer, and compute the router in fp32 on both sides",
        before=before,
        after=after,
        confidence=0.95,
        numbers={"share_flipped": float(flips.mean())},
    )


def find_flips(pairs: PairedTokens) -> Array | None:
    """Say which tokens have other experts; None if a table does not say, or they have other numbers of them."""
    first, second = pairs.reference.routing, pairs.candidate.routing
    if first is None or second is None or first.shape != second.shape:
        return None
    return np.asarray((first != second).any(axis=1))


def _before_first(pairs: PairedTokens, flips: Array) -> Array:
    """Say which tokens have no flip at or before them in their sample."""
    seen = np.cumsum(flips)
    begins = np.flatnonzero(np.r_[True, np.diff(pairs.reference.samples) != 0])
    lengths = np.diff(np.r_[begins, len(flips)])
    at_begin = np.repeat(seen[begins] - flips[begins], lengths)
    return np.asarray(seen == at_begin)


def other_weights(pairs: PairedTokens, *, limit: float) -> CauseExplanation | None:
    """Return what versions and fingerprints say about weights that differ, if the engines differ beyond formats."""
    before = rms(pairs.difference[pairs.is_finite])
    if before <= limit:
        return None
    return _by_version(pairs, before, limit) or _by_fingerprint(pairs, before)


def lag_of(pairs: PairedTokens) -> Array | None:
    """Return by how many versions the candidate is behind at each token; None if a table does not say."""
    first, second = pairs.reference.version, pairs.candidate.version
    return None if first is None or second is None else first.astype(np.int64) - second


def _by_version(pairs: PairedTokens, before: float, limit: float) -> CauseExplanation | None:
    lag = lag_of(pairs)
    if lag is None or not lag.any():
        return None
    lags = np.unique(lag)
    by_lag = {int(each): rms(pairs.difference[(lag == each) & pairs.is_finite]) for each in lags[:20]}
    if by_lag.get(0, 0.0) > limit:
        return None  # it differs with the same weights too
    worst = int(lags[np.argmax(np.abs(lags))])
    late = "candidate" if worst > 0 else "reference"
    listed = [
        f"{nats(size)} at {plural(abs(each), 'version')}"
        for each, size in sorted(by_lag.items(), key=lambda p: abs(p[0]))
    ]
    share = float((lag != 0).mean())
    return CauseExplanation(
        cause=Cause.STALE_WEIGHTS,
        title=f"the {late} used weights that are {'up to ' if len(lags) > 1 else ''}"
        f"{plural(abs(worst), 'version')} older",
        proof=(f"{100 * share:.3g} % of its tokens; the difference by age is {join_words(listed)}",),
        fix="load the new weights before the next rollout, or correct for the age of the samples",
        before=rms(pairs.difference[(lag != 0) & pairs.is_finite]),
        after=by_lag.get(0, 0.0),
        confidence=0.95 if 0 in by_lag else 0.85,
        numbers={"versions": abs(worst), "side": late, "rms_by_lag": {str(key): size for key, size in by_lag.items()}},
    )


def _by_fingerprint(pairs: PairedTokens, before: float) -> CauseExplanation | None:
    reference, candidate = pairs.reference.facts, pairs.candidate.facts
    if not reference.weights or not candidate.weights:
        return None
    version = _latest(candidate)
    mine = reference.weights.get(version, reference.weights[_latest(reference)])
    theirs = candidate.weights[version]
    found = compare_weights(mine, theirs, is_narrow=_is_narrow(reference, candidate))
    if found.are_same:
        return None
    if found.missing:
        return _missing(found, before)
    if found.wrong and len(found.wrong) < found.num_common:
        return _wrong(found, before, mine, theirs)
    return _stale(reference, candidate, found, before)


def _latest(facts: EngineFacts) -> str:
    return max(facts.weights, key=lambda version: (int(version) if version.lstrip("-").isdecimal() else -1, version))


def _is_narrow(reference: EngineFacts, candidate: EngineFacts) -> bool:
    return any(facts.dtype not in (None, "float32", "bfloat16", "float64") for facts in (reference, candidate))


def _missing(found: WeightDifferences, before: float) -> CauseExplanation:
    names = found.missing
    is_adapter = all("lora_" in name for name in names)
    what = "an adapter" if is_adapter else plural(len(names), "weight")
    also = ": the layers that it belongs to have the weights without it" if is_adapter else ""
    return _weights(
        f"the candidate lacks {what}",
        f"only the reference has {join_names(names, at_most=3)}{also}; the difference is {nats(before)}",
        before,
        {"missing": list(names[:50])},
    )


def _wrong(
    found: WeightDifferences,
    before: float,
    reference: dict[str, list[float]] | object,
    candidate: dict[str, list[float]] | object,
) -> CauseExplanation:
    assert isinstance(reference, dict)
    assert isinstance(candidate, dict)
    name = found.wrong[0][0]
    how = describe_wrong(reference[name], candidate[name])
    listed = join_names([name for name, _ in found.wrong], at_most=3)
    return _weights(
        f"{plural(len(found.wrong), 'weight')} of {found.num_common} {'was' if len(found.wrong) == 1 else 'were'} "
        "converted wrongly",
        f"{listed} differ{'s' if len(found.wrong) == 1 else ''} from the reference's, and all others are the same; "
        f"{name}: {how}",
        before,
        {"wrong": [[name, distance] for name, distance in found.wrong[:50]]},
    )


def _weights(title: str, proof: str, before: float, numbers: dict[str, JsonValue]) -> CauseExplanation:
    return CauseExplanation(
        cause=Cause.WRONG_WEIGHTS,
        title=title,
        proof=(proof,),
        fix="compare the names and layouts that the engine loads with those that the trainer saves: roundoff params",
        before=before,
        after=None,
        confidence=0.95,
        numbers=numbers,
    )


def _stale(reference: EngineFacts, candidate: EngineFacts, found: WeightDifferences, before: float) -> CauseExplanation:
    """Say which of the trainer's versions the engine has, if it is one of those that were saved."""
    theirs, is_narrow = candidate.weights[_latest(candidate)], _is_narrow(reference, candidate)
    versions = [
        v for v, mine in reference.weights.items() if compare_weights(mine, theirs, is_narrow=is_narrow).are_same
    ]
    known = sorted(reference.weights, key=lambda version: (len(version), version))
    apart = [*found.wrong, *found.moved]
    typical = float(np.median([distance for _, distance in apart]))
    proof = (
        f"{len(apart)} of {plural(found.num_common, 'weight')} differ, by {100 * typical:.2g} % of their norm (median)"
    )
    numbers: dict[str, JsonValue] = {"num_different": len(apart), "median_distance": typical}
    title = "the engines have different weights: the candidate's are older or newer, or of another training"
    if versions:
        age = known.index(_latest(reference)) - known.index(versions[-1])
        title = f"the candidate has weights that are {plural(age, 'version')} older"
        proof += f"; they are those of version {versions[-1]}, and the reference has version {_latest(reference)}"
        numbers["versions"] = age
    return CauseExplanation(
        cause=Cause.STALE_WEIGHTS,
        title=title,
        proof=(f"{proof}; the difference is {nats(before)}",),
        fix="load the new weights before the next rollout, and check that the engine drops its caches",
        before=before,
        after=None,
        confidence=0.95 if versions else 0.8,
        numbers=numbers,
    )
