"""Pairs the rows of two tables by sample and position, and measures the ratios that training on samples depends on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from roundoff.compare.logprobs.logprob_table import Array, LogprobTable, describe_key
from roundoff.errors import CompareError
from roundoff.words import plural

LOW_RATIO, HIGH_RATIO = 0.8, 1.2
"""Ratios beyond these are clipped by most trainings."""
_MAX_SUBSET = 1 << 18
_NUM_BLOCKS = 64
_CHUNK = 1 << 15


@dataclass(frozen=True)
class PairedTokens:
    """The rows that both tables have, in the same order: by sample, then by position."""

    reference: LogprobTable
    candidate: LogprobTable
    num_only_reference: int = 0
    num_only_candidate: int = 0

    def __len__(self) -> int:
        return len(self.reference)

    @cached_property
    def difference(self) -> Array:
        """The candidate's log-probability less the reference's, in nats; not finite where one of them is -infinity."""
        with np.errstate(invalid="ignore"):
            return np.subtract(self.candidate.logprobs, self.reference.logprobs, dtype=np.float64)

    @cached_property
    def is_finite(self) -> Array:
        """Where both log-probabilities are finite."""
        return np.isfinite(self.difference)

    @cached_property
    def has_same_token(self) -> Array:
        """Where both tables have the same token."""
        return np.asarray(self.reference.tokens == self.candidate.tokens)

    def take(self, rows: Array) -> PairedTokens:
        """Return some of the pairs."""
        return PairedTokens(
            self.reference.take(rows), self.candidate.take(rows), self.num_only_reference, self.num_only_candidate
        )

    @cached_property
    def subset(self) -> PairedTokens:
        """All of them, or about a quarter of a million from all parts of a larger table: whole stretches of samples."""
        if len(self) <= _MAX_SUBSET:
            return self
        size = _MAX_SUBSET // _NUM_BLOCKS
        begins = np.linspace(0, len(self) - size, _NUM_BLOCKS).astype(np.int64)
        return self.take((begins[:, None] + np.arange(size)).ravel())

    def samples(self) -> Iterator[slice]:
        """Yield the rows of each sample."""
        ends = np.flatnonzero(np.diff(self.reference.samples)) + 1
        bounds = [0, *ends.tolist(), len(self)]
        yield from (slice(begin, end) for begin, end in itertools.pairwise(bounds))


def pair_tables(reference: LogprobTable, candidate: LogprobTable) -> PairedTokens:
    """Pair the rows of two tables by sample and position.

    Raises:
        CompareError: a table has a key twice, or the two have none in common.
    """
    first, second = _keys(reference, candidate)
    if len(first) == len(second) and (first[1:] > first[:-1]).all() and np.array_equal(first, second):
        return PairedTokens(reference, candidate)
    (first, first_rows), (second, second_rows) = _sort(reference, first), _sort(candidate, second)
    places = np.minimum(np.searchsorted(second, first), len(second) - 1)
    is_common = second[places] == first
    if not is_common.any():
        raise CompareError.explain(
            f"'{reference.name}' and '{candidate.name}' have no token in common.",
            why=f"one begins with {describe_key(reference, 0)}, the other with {describe_key(candidate, 0)}.",
            fix="give the same samples the same names on both sides, and count positions from the same token.",
        )
    num_common = int(is_common.sum())
    return PairedTokens(
        reference.take(first_rows[is_common]),
        candidate.take(second_rows[places[is_common]]),
        len(first) - num_common,
        len(second) - num_common,
    )


def _keys(reference: LogprobTable, candidate: LogprobTable) -> tuple[Array, Array]:
    """Return a number for each row that is the same on both sides for the same sample and position."""
    first, second = reference.samples, candidate.samples
    if reference.sample_names is not None or candidate.sample_names is not None:
        known: dict[str, int] = {}
        first, second = (_by_name(table, known) for table in (reference, candidate))
    elif min(first.min(), second.min()) < 0 or max(first.max(), second.max()) >= 2**31:
        codes = np.unique(np.concatenate([first, second]), return_inverse=True)[1]
        first, second = codes[: len(first)], codes[len(first) :]
    keys = [codes.astype(np.int64) << 32 for codes in (first, second)]
    for key, table in zip(keys, (reference, candidate), strict=True):
        key |= table.positions
    return keys[0], keys[1]


def _by_name(table: LogprobTable, known: dict[str, int]) -> Array:
    if table.sample_names is not None:
        return np.array([known.setdefault(name, len(known)) for name in table.sample_names], np.int64)[table.samples]
    numbers, codes = np.unique(table.samples, return_inverse=True)
    return np.array([known.setdefault(str(number), len(known)) for number in numbers.tolist()], np.int64)[codes]


def _sort(table: LogprobTable, keys: Array) -> tuple[Array, Array]:
    if (keys[1:] > keys[:-1]).all():
        return keys, np.arange(len(keys))
    rows = np.argsort(keys, kind="stable")
    ordered = keys[rows]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(again):
        raise CompareError.explain(
            f"'{table.name}' has {plural(len(again), 'token')} more than once.",
            why=f"the first is {describe_key(table, int(rows[again[0]]))}.",
            fix="give every sample a name of its own, also over several batches and epochs.",
        )
    return ordered, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioStatistics:
    """Differences of log-probabilities, and the importance ratios p_reference / p_candidate, over all tokens.

    The candidate made the samples, so k1 and k3 estimate the KL divergence of the reference from it.
    """

    num_tokens: int
    rms: float
    mean_abs: float
    max_abs: float
    k1: float
    k3: float
    mean_ratio: float
    share_outside: float
    """The share of ratios below 0.8 or above 1.2."""
    ess: float
    """The effective sample size, as a share of the tokens."""


def measure_ratios(difference: Array) -> RatioStatistics:
    """Measure finite differences, candidate less reference."""
    sums, largest = np.zeros(7), 0.0
    for begin in range(0, len(difference), _CHUNK):  # which stay in the cache
        part = difference[begin : begin + _CHUNK]
        log_ratio = np.clip(-part, -80.0, 80.0)
        ratio, sizes = np.exp(log_ratio), np.abs(part)
        outside = (log_ratio < np.log(LOW_RATIO)) | (log_ratio > np.log(HIGH_RATIO))
        k3 = (ratio - 1 - log_ratio).sum()
        squares = np.dot(part, part), np.dot(ratio, ratio)
        sums += [squares[0], sizes.sum(), -log_ratio.sum(), k3, ratio.sum(), outside.sum(), squares[1]]
        largest = max(largest, float(sizes.max()))
    square, size, k1, k3, ratio_mean, share, ratio_square = (sums / len(difference)).tolist()
    return RatioStatistics(
        num_tokens=len(difference),
        rms=math.sqrt(square),
        mean_abs=size,
        max_abs=largest,
        k1=k1,
        k3=k3,
        mean_ratio=ratio_mean,
        share_outside=share,
        ess=ratio_mean**2 / ratio_square,
    )


def rms(values: Array) -> float:
    """Return the root mean square; 0 of nothing."""
    return float(np.sqrt(np.dot(values, values) / len(values))) if len(values) else 0.0
