"""The distribution that one engine had at each token, and what temperature, truncation and penalties make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roundoff.compare.logprobs.logprob_table import Array, LogprobTable
from roundoff.compare.logprobs.paired_tokens import PairedTokens

MAX_ROWS = 1 << 14
"""Distributions are looked at for at most this many tokens."""
_SPARSE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The log-probabilities of the most probable tokens, or of all, at each place; the chosen one has its own.

    Rows are sorted from the most probable down.
    """

    ids: Array
    logprobs: Array
    chosen_ids: Array
    chosen: Array
    is_complete: bool
    logits: Array | None = None
    """Unnormalised, in the same order; a repetition penalty depends on their sign."""

    @classmethod
    def of(cls, table: LogprobTable, rows: Array) -> Distribution | None:
        """Return the distribution of some rows of a table, or None if the table has none."""
        tokens = table.tokens[rows]
        if table.logits is not None:
            logits = table.logits[rows].astype(np.float64)
            if tokens.min() < 0 or tokens.max() >= logits.shape[1] or not np.isfinite(logits).all():
                return None
            normal = logits - _logsumexp(logits)[:, None]
            order = np.argsort(-normal, axis=1, kind="stable")
            return cls(
                ids=order,
                logprobs=np.take_along_axis(normal, order, 1),
                chosen_ids=tokens,
                chosen=normal[np.arange(len(tokens)), tokens],
                is_complete=True,
                logits=np.take_along_axis(logits, order, 1),
            )
        if table.top_logprobs is None or table.top_tokens is None or table.top_logprobs.shape[1] < 2:
            return None
        logprobs, ids = table.top_logprobs[rows].astype(np.float64), table.top_tokens[rows]
        if logprobs.shape != ids.shape or np.isnan(logprobs).any():
            return None
        order = np.argsort(-logprobs, axis=1, kind="stable")
        logprobs = np.maximum(np.take_along_axis(logprobs, order, 1), -700.0)
        chosen = table.logprobs[rows].astype(np.float64)
        return cls(
            ids=np.take_along_axis(ids, order, 1),
            logprobs=logprobs,
            chosen_ids=tokens,
            chosen=np.maximum(chosen, -700.0),
            is_complete=False,
        )

    def with_temperature(self, temperature: float) -> Array:
        """Return the log-probability of each chosen token when the logits are divided by a temperature."""
        scaled = self.logprobs / temperature
        total = np.exp(scaled).sum(axis=1)
        if not self.is_complete:  # the rest is at most as probable as the last one that is known
            rest = np.maximum(1 - np.exp(self.logprobs).sum(axis=1), 0.0)
            total += rest * np.exp(self.logprobs[:, -1] * (1 / temperature - 1))
        return np.asarray(self.chosen / temperature - np.log(total))

    def with_top_k(self, k: int) -> Array:
        """Return it when only the `k` most probable tokens may be chosen."""
        return self._truncate(np.exp(self.logprobs[:, :k]).sum(axis=1))

    def with_top_p(self, p: float) -> Array:
        """Return it when only the most probable tokens with `p` of the probability may be chosen."""
        sums = np.cumsum(np.exp(self.logprobs), axis=1)
        last = np.minimum((sums < p).sum(axis=1), sums.shape[1] - 1)
        return self._truncate(sums[np.arange(len(sums)), last])

    def _truncate(self, mass: Array) -> Array:
        return np.asarray(np.minimum(self.chosen - np.log(np.maximum(mass, _SPARSE)), 0.0))

    def with_penalty(self, kind: str, amount: float, *, counts: Array, chosen_counts: Array) -> Array:
        """Return it when tokens that were used before are penalised.

        Args:
            kind: `presence` and `frequency` subtract from a logit, `repetition` divides or multiplies it.
            amount: of the penalty.
            counts: how often each token of the distribution was used before.
            chosen_counts: the same of the chosen one.
        """
        if kind == "repetition":
            assert self.logits is not None
            shift = _logsumexp(self.logits)
            chosen_logit = self.chosen + shift
            values = _divide(self.logits, amount, counts)
            chosen = _divide(chosen_logit, amount, chosen_counts)
            return np.asarray(chosen - _logsumexp(values))
        if kind == "presence":
            counts, chosen_counts = np.minimum(counts, 1), np.minimum(chosen_counts, 1)
        total = np.exp(self.logprobs - amount * counts).sum(axis=1)
        if not self.is_complete:
            total += np.maximum(1 - np.exp(self.logprobs).sum(axis=1), 0.0)
        return np.asarray(self.chosen - amount * chosen_counts - np.log(total))

    def rounded_to_bfloat16(self) -> Array:
        """Return it when the logits are rounded to bfloat16."""
        assert self.logits is not None
        shift = _logsumexp(self.logits)
        return np.asarray(_to_bfloat16(self.chosen + shift) - _logsumexp(_to_bfloat16(self.logits)))


def _divide(logits: Array, amount: float, counts: Array) -> Array:
    return np.where(counts > 0, np.where(logits > 0, logits / amount, logits * amount), logits)


def _logsumexp(values: Array) -> Array:
    top = values.max(axis=1)
    return np.asarray(top + np.log(np.exp(values - top[:, None]).sum(axis=1)))


def _to_bfloat16(values: Array) -> Array:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def count_earlier(pairs: PairedTokens, rows: Array, ids: Array) -> tuple[Array, Array]:
    """Return how often each token of `ids`, and each chosen one, occurred before in its sample.

    Args:
        pairs: all tokens.
        rows: those that the first axis of `ids` is about, sorted.
        ids: tokens by row.
    """
    tokens = pairs.reference.tokens
    counts, chosen = np.zeros(ids.shape, dtype=np.int32), np.zeros(len(rows), dtype=np.int32)
    place = {row: number for number, row in enumerate(rows.tolist())}
    size = int(max(tokens.max(), ids.max(initial=0))) + 1
    if size > 1 << 22:
        return counts, chosen
    for part in pairs.samples():
        seen = np.zeros(size, dtype=np.int32)
        for row in range(part.start, part.stop):
            if (number := place.get(row)) is not None:
                counts[number], chosen[number] = seen[ids[number]], seen[tokens[row]]
            seen[tokens[row]] += 1
    return counts, chosen


def occurred_before(pairs: PairedTokens) -> Array:
    """Say which tokens occurred before in their sample."""
    order = np.lexsort((pairs.reference.tokens, pairs.reference.samples))
    samples, tokens = pairs.reference.samples[order], pairs.reference.tokens[order]
    found = np.zeros(len(pairs), dtype=bool)
    found[order[1:]] = (samples[1:] == samples[:-1]) & (tokens[1:] == tokens[:-1])
    return found


def fit(error: Callable[[float], float], low: float, high: float, *, num: int = 25, rounds: int = 4) -> float:
    """Return where a function of one number is smallest, by ever finer grids."""
    for _ in range(rounds):
        grid = np.linspace(low, high, num)
        best = int(np.argmin([error(float(x)) for x in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, num - 1)]
    return float((low + high) / 2)
