"""Causes that change one engine's distribution: temperature, top-p, top-k, penalties, and the format of the head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from roundoff.compare.logprobs.distribution import MAX_ROWS, Distribution, count_earlier, fit, occurred_before
from roundoff.compare.logprobs.explanation import HALF, MATTERS, Cause, CauseExplanation, nats
from roundoff.compare.logprobs.format_noise import is_bfloat16
from roundoff.compare.logprobs.logprob_table import Array, LogprobTable
from roundoff.compare.logprobs.paired_tokens import PairedTokens, rms
from roundoff.runs import JsonValue

_MAX_K = 1000
_GRID = 2.0**-10
_ON_GRID = 0.02
"""Differences of bfloat16 or fp16 logits are multiples of this, within the rounding of log-probabilities."""
_MIN_TOKENS = 50
_ONE_SIDED = 0.1
_EDGE = 1.25
_ABOUT_SAME = 1.25
_MAX_LEFT = 0.4
_MIN_SLOPE = 0.02
_FIXES = {
    Cause.TEMPERATURE: "compute both from logits divided by the same temperature, or both from the raw logits",
    Cause.TOP_P: "take the log-probabilities before truncation on both sides (vLLM: logprobs_mode raw_logprobs)",
    Cause.TOP_K: "take the log-probabilities before truncation on both sides (vLLM: logprobs_mode raw_logprobs)",
    Cause.PENALTY: "switch the penalty off, or take the log-probabilities before it",
    Cause.HEAD_DTYPE: "compute the head and its softmax in fp32 on both sides",
}


def proven_by_distributions(pairs: PairedTokens, *, limit: float) -> list[CauseExplanation]:
    """Return causes that reproduce one engine's log-probabilities from the other's distribution, the best first."""
    rows = np.flatnonzero(pairs.is_finite)
    rows = rows[:: -(-len(rows) // MAX_ROWS)] if len(rows) > MAX_ROWS else rows
    found: list[CauseExplanation] = []
    for side, other in (("reference", "candidate"), ("candidate", "reference")):
        table: LogprobTable = getattr(pairs, side)
        distribution = Distribution.of(table, rows) if len(rows) >= _MIN_TOKENS else None
        if distribution is None:
            continue
        before, own = rms(pairs.difference[rows]), table.logprobs[rows].astype(np.float64)
        if rms(own - distribution.chosen) ** 2 > HALF * before**2:  # it did something to its own logits
            other, wanted = side, own
        else:
            wanted = getattr(pairs, other).logprobs[rows].astype(np.float64)
        found += _Trial(distribution, wanted, side, other, before).explanations(pairs, rows)
    return sorted((each for each in found if each.explains(limit=limit) and each.before >= MATTERS), key=_preference)


def _preference(found: CauseExplanation) -> float:
    """Order by what is left; of two that leave about the same, the one about the reference's logits comes first."""
    assert found.after is not None
    return found.after * (1.0 if found.numbers["applied_to"] == "reference" else _ABOUT_SAME)


class _Trial:
    """One side's distribution, and the other side's log-probabilities to be reproduced from it."""

    def __init__(self, distribution: Distribution, wanted: Array, side: str, other: str, before: float) -> None:
        self.distribution, self.wanted = distribution, wanted
        self.side, self.other, self.before = side, other, before

    def explanations(self, pairs: PairedTokens, rows: Array) -> Iterator[CauseExplanation]:
        yield self._temperature()
        yield from self._truncations()
        yield from self._penalties(pairs, rows)
        if self.distribution.logits is not None:
            after = self._left(self.distribution.rounded_to_bfloat16())
            what = f"with the {self.side}'s logits rounded to bfloat16"
            title = f"the head of the {self.other} computes in bfloat16, that of the {self.side} does not"
            yield self._explain(Cause.HEAD_DTYPE, title, what, after, {"head_dtype": "bfloat16"})

    def _left(self, predicted: Array) -> float:
        return rms(self.wanted - predicted)

    def _temperature(self) -> CauseExplanation:
        with_log = fit(lambda x: self._left(self.distribution.with_temperature(math.exp(x))), -1.7, 1.7)
        temperature = math.exp(with_log)
        after = self._left(self.distribution.with_temperature(temperature))
        what = f"with temperature {temperature:.3g} applied to the {self.side}'s logits"
        title = f"a temperature of {temperature:.3g} separates the {self.other} from the {self.side}"
        if self.other == self.side:
            title = f"only the {self.side} divides its logits by a temperature, {temperature:.3g}"
        return self._explain(Cause.TEMPERATURE, title, what, after, {"temperature": round(temperature, 4)})

    def _truncations(self) -> Iterator[CauseExplanation]:
        top_p = fit(lambda p: self._left(self.distribution.with_top_p(p)), 0.05, 0.999)
        after = self._left(self.distribution.with_top_p(top_p))
        title = f"only the {self.other} truncates its distribution, with top-p {top_p:.3g}"
        what = f"with top-p {top_p:.3g} applied to the {self.side}'s distribution"
        yield self._explain(Cause.TOP_P, title, what, after, {"top_p": round(top_p, 4)})
        widest = min(self.distribution.logprobs.shape[1], _MAX_K)
        sizes = sorted({*range(1, min(widest, 130) + 1), *np.geomspace(1, widest, 40).astype(int).tolist()})
        top_k = min(sizes, key=lambda k: self._left(self.distribution.with_top_k(k)))
        after = self._left(self.distribution.with_top_k(top_k))
        title = f"only the {self.other} truncates its distribution, with top-k {top_k}"
        what = f"with top-k {top_k} applied to the {self.side}'s distribution"
        yield self._explain(Cause.TOP_K, title, what, after, {"top_k": top_k})

    def _penalties(self, pairs: PairedTokens, rows: Array) -> Iterator[CauseExplanation]:
        counts, chosen = count_earlier(pairs, rows, self.distribution.ids)
        if not chosen.any():
            return
        kinds = {"presence": (-2.0, 2.0), "frequency": (-2.0, 2.0)}
        if self.distribution.logits is not None:
            kinds["repetition"] = (0.5, 2.0)
        for kind, (low, high) in kinds.items():

            def error(amount: float, kind: str = kind) -> float:
                return self._left(self.distribution.with_penalty(kind, amount, counts=counts, chosen_counts=chosen))

            amount = fit(error, low, high)
            what = f"with a {kind} penalty of {amount:.3g} applied to the {self.side}'s logits"
            title = f"only the {self.other} applies a {kind} penalty, {amount:.3g}"
            yield self._explain(
                Cause.PENALTY, title, what, error(amount), {"penalty": kind, "amount": round(amount, 4)}
            )

    def _explain(
        self, cause: Cause, title: str, what: str, after: float, numbers: dict[str, JsonValue]
    ) -> CauseExplanation:
        return CauseExplanation(
            cause=cause,
            title=title,
            proof=(f"{what} the difference falls from {nats(self.before)} to {nats(after)}",),
            fix=_FIXES[cause],
            before=self.before,
            after=after,
            confidence=0.98,
            numbers={**numbers, "applied_to": self.side},
        )


def seen_in_tokens(pairs: PairedTokens) -> list[CauseExplanation]:
    """Return causes that the chosen tokens alone suggest, for tables without distributions."""
    some = pairs.subset
    rows = np.flatnonzero(some.is_finite)
    if len(rows) < _MIN_TOKENS:
        return []
    difference = some.difference[rows]
    before = rms(difference)
    if before < MATTERS:
        return []
    tries: tuple[Callable[[], CauseExplanation | None], ...] = (
        lambda: _explain_by_penalty(some, rows, difference, before),
        lambda: _one_sided(difference, before),
        lambda: _function_of_logprob(some, rows, difference, before),
    )
    return [found for each in tries if (found := each()) is not None]


def _explain_by_penalty(pairs: PairedTokens, rows: Array, difference: Array, before: float) -> CauseExplanation | None:
    """Look for differences that depend on whether a token occurred before."""
    is_again = occurred_before(pairs)[rows]
    if min(is_again.sum(), (~is_again).sum()) < _MIN_TOKENS:
        return None
    again, new = (float(np.mean(difference[part])) for part in (is_again, ~is_again))
    left = difference - np.where(is_again, again, new)
    if np.sign(again) == np.sign(new) or abs(again) < 0.3 * before or rms(left) ** 2 > 0.7 * before**2:
        return None
    side = "candidate" if again < 0 else "reference"
    return CauseExplanation(
        cause=Cause.PENALTY,
        title=f"only the {side} penalises tokens that occurred before",
        proof=(
            f"tokens that occurred before in their sample are {nats(abs(again))} {'lower' if again < 0 else 'higher'} "
            f"in the candidate on average, new ones {nats(abs(new))} {'lower' if new < 0 else 'higher'}",
            f"without these two means the difference falls from {nats(before)} to {nats(rms(left))}",
        ),
        fix=_FIXES[Cause.PENALTY],
        before=before,
        after=rms(left),
        confidence=0.8,
        numbers={"mean_repeated": again, "mean_new": new},
    )


def _one_sided(difference: Array, before: float) -> CauseExplanation | None:
    """Look for differences of one sign, which come from a distribution that was cut off and made larger."""
    low, median, high, top = np.quantile(difference, [0.005, 0.5, 0.995, 0.9995]).tolist()
    side = "candidate" if high > -low else "reference"
    if side == "reference":
        low, high, top = -high, -low, -float(np.quantile(difference, 0.0005))
    if low < -_ONE_SIDED * high or abs(median) > 0.9 * high:
        return None
    is_top_p = top <= _EDGE * float(np.quantile(np.abs(difference), 0.98))
    cause, about = (Cause.TOP_P, f"top-p of about {math.exp(-top):.2g}") if is_top_p else (Cause.TOP_K, "top-k")
    numbers: dict[str, JsonValue] = {"top_p": round(math.exp(-top), 3)} if is_top_p else {}
    outside = float((np.abs(difference) > top).mean())
    return CauseExplanation(
        cause=cause,
        title=f"only the {side} truncates its distribution, probably with {about}",
        proof=(
            f"no token is less probable in the {side} beyond {nats(max(-low, 0.0))}, and {100 * (1 - outside):.3g} % "
            f"are more probable by up to {nats(top)}: the rest of the distribution was left out",
        ),
        fix=_FIXES[cause],
        before=before,
        after=rms(np.minimum(difference if side == "candidate" else -difference, 0.0)),
        confidence=0.7,
        numbers=numbers,
    )


def _function_of_logprob(pairs: PairedTokens, rows: Array, difference: Array, before: float) -> CauseExplanation | None:
    """Look for differences that the log-probability itself decides, as it does with another temperature.

    Along the log-probabilities of the side without the temperature the difference grows. Chance makes it fall.
    """
    for side, other, sign in (("reference", "candidate", 1), ("candidate", "reference", -1)):
        logprobs = getattr(pairs, side).logprobs[rows].astype(np.float64)
        bins = np.digitize(logprobs, np.quantile(logprobs, np.linspace(0, 1, 33)[1:-1]))
        sums, counts = np.bincount(bins, difference, 32), np.maximum(np.bincount(bins, minlength=32), 1)
        left = rms(difference - (sums / counts)[bins])
        slope = float(np.polyfit(logprobs, sign * difference, 1)[0])
        if left**2 > _MAX_LEFT * before**2 or slope < _MIN_SLOPE:
            continue
        temperature = 1 / (1 + slope)
        return CauseExplanation(
            cause=Cause.TEMPERATURE,
            title=f"the {other} divides its logits by a temperature, of about {temperature:.2g}, the {side} does not",
            proof=(
                f"the difference grows with the {side}'s log-probability, by {slope:.2g} a nat; without its mean at "
                f"each log-probability it falls from {nats(before)} to {nats(left)}",
                "write top_tokens and top_logprobs on one side to know the temperature exactly",
            ),
            fix=_FIXES[Cause.TEMPERATURE],
            before=before,
            after=left,
            confidence=0.6,
            numbers={"temperature": round(temperature, 2), "slope": slope, "side": other},
        )
    return None


def narrow_head(pairs: PairedTokens, *, limit: float) -> CauseExplanation | None:
    """Say that one side's logits are numbers of a narrow format and the other's are not, where layers are alike."""
    facts = pairs.reference.facts, pairs.candidate.facts
    before = rms(pairs.difference[pairs.is_finite])
    if facts[0].dtype is None or facts[0].dtype != facts[1].dtype or not MATTERS <= before <= limit:
        return None
    narrow = [_has_narrow_head(table) for table in (pairs.subset.reference, pairs.subset.candidate)]
    if None in narrow:
        narrow = [each.head_dtype in ("bfloat16", "float16") if each.head_dtype else None for each in facts]
    if None in narrow or narrow[0] == narrow[1]:
        return None
    side, other = ("reference", "candidate") if narrow[0] else ("candidate", "reference")
    return CauseExplanation(
        cause=Cause.HEAD_DTYPE,
        title=f"the head of the {side} computes in a narrow format, that of the {other} does not",
        proof=(
            f"the layers of both compute in {facts[0].dtype}; the {side}'s logits are multiples of a power of 2, as "
            f"rounded ones are, and the {other}'s are not; the difference is {nats(before)}",
        ),
        fix=_FIXES[Cause.HEAD_DTYPE],
        before=before,
        after=None,
        confidence=0.85,
        numbers={"side": side},
    )


def _has_narrow_head(table: LogprobTable) -> bool | None:
    """Whether logits were rounded to 16 bits; None if the table does not show it."""
    if table.logits is not None:
        some = table.logits[:4096].astype(np.float32)
        return is_bfloat16(some.ravel()) or bool((some == some.astype(np.float16)).mean() > 0.99)
    if is_bfloat16(table.logprobs):
        return True
    if table.top_logprobs is None or table.top_logprobs.shape[1] < 2:
        return None
    top = -np.sort(-table.top_logprobs[: 1 << 14].astype(np.float64), axis=1)
    gaps = (top[:, 0] - top[:, 1]) / _GRID
    gaps = gaps[np.isfinite(gaps)]
    return bool((np.abs(gaps - np.round(gaps)) < _ON_GRID).mean() > 0.8)
