"""How much of a tensor lies outside the range of a format, from the tensor's exponent histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from roundoff.formats import FixedPoint, SmallFloat, format_named

Counts: TypeAlias = npt.NDArray[np.uint16]
Numbers: TypeAlias = npt.NDArray[np.float64]

FORMATS = ("bf16", "fp16", "e5m2", "e4m3")
"""The floating-point formats that tensors are compared with, the widest range first."""
ONE = 40
"""The bucket that starts at 1; the next one starts at 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The range of a format, as powers of two."""

    name: str
    largest: float
    """Larger magnitudes overflow or saturate."""
    smallest_normal: float
    """Smaller magnitudes lose digits."""
    smallest: float
    """Magnitudes below half of it become 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """Estimated shares of the nonzero elements that a format would not represent as they are.

    Within a bucket, elements are assumed to be spread smoothly. Nothing is beyond a format that represents the largest
    element, which is known exactly.
    """

    beyond: float
    """Larger than any number of the format."""
    lost: float
    """Too small: they become 0."""
    rough: float
    """Represented with fewer digits: subnormal in the format."""


@cache
def range_of(name: str) -> Range:
    """Return the range of a floating-point format."""
    fmt = format_named(name)
    assert isinstance(fmt, SmallFloat)
    return Range(
        name=name,
        largest=float(fmt.largest),
        smallest_normal=float(fmt.smallest_normal),
        smallest=float(fmt.smallest_subnormal),
    )


def fixed_range(absmax: float, *, num_bits: int) -> Range | None:
    """Return the range of fixed point whose scale is the power of two above the largest element; None if there is none.

    >>> fixed_range(0.9, num_bits=8)
    Range(name='fixed 8', largest=0.9921875, smallest_normal=0.0078125, smallest=0.0078125)
    """
    if not 0 < absmax < 2.0**90 or absmax < 2.0**-60:
        return None
    fmt = FixedPoint.covering(2.0 ** math.ceil(math.log2(absmax)), num_bits=num_bits)
    return Range(
        name=f"fixed {num_bits}", largest=float(fmt.largest), smallest_normal=float(fmt.step), smallest=float(fmt.step)
    )


def cut_offs(
    counts: Counts,
    *,
    absmax: float,
    ranges: Sequence[Range],
    infinite_share: float = 0.0,
    own_largest: float = math.inf,
) -> list[CutOff]:
    """Return how much of a tensor each format would cut off.

    Its infinite elements are beyond any format whose range is not larger than that of its own, up to `own_largest`.
    """
    total = int(counts.sum())
    limits = np.array([(each.largest, each.smallest_normal, each.smallest / 2) for each in ranges])
    finite_share = 1 - infinite_share
    below = np.ones(limits.shape) * (1, 0, 0)
    if total:
        below = _num_below(counts, np.log2(limits), absmax) / total
    found = []
    for each, (largest, normal, lost) in zip(ranges, below.tolist(), strict=True):
        beyond = max(0.0, 1 - largest) if absmax > each.largest else 0.0
        infinite = infinite_share if each.largest <= own_largest else 0.0
        found.append(
            CutOff(
                beyond=beyond * finite_share + infinite,
                lost=lost * finite_share,
                rough=max(0.0, normal - lost) * finite_share,
            )
        )
    return found


def bucket_begin(bucket: int) -> float:
    """Return the power of two at which a bucket starts; the first one also holds everything below."""
    return float(bucket - ONE)


def _num_below(counts: Counts, limits: Numbers, absmax: float) -> Numbers:
    """Estimate how many elements are smaller than each limit, given as a power of two.

    For a limit in the first bucket, which is open, the estimate is none.
    """
    highest = int(np.flatnonzero(counts)[-1])
    edges = [bucket_begin(bucket) for bucket in range(1, highest + 1)]
    last = edges[-1] if edges else bucket_begin(1)
    top = math.log2(absmax) if absmax > 0 else last
    known = np.cumsum(counts[: highest + 1], dtype=np.float64)
    if top <= last:  # all of the last bucket is at its start, or in the first one
        edges, known = edges[:-1], np.append(known[:-2], known[-1])
        top = last
    return _smooth(limits, np.array([*edges, top]), known)


def _smooth(at: Numbers, edges: Numbers, known: Numbers) -> Numbers:
    """Return counts that are known at the edges, between them along cubics that never go down.

    The slopes at the edges are harmonic means of those on either side (Fritsch and Butland), and 0 at both ends: few
    elements are as large as the largest.
    """
    if len(edges) == 1:
        return np.where(at < edges[0], 0.0, known[0])
    widths = np.diff(edges)
    rises = np.diff(known) / widths
    slopes = np.zeros(len(edges))
    both = (rises[:-1] > 0) & (rises[1:] > 0)
    slopes[1:-1][both] = 2 / (1 / rises[:-1][both] + 1 / rises[1:][both])
    place = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, len(widths) - 1)
    width = widths[place]
    t = np.clip((at - edges[place]) / width, 0, 1)
    begin, end = known[place], known[place + 1]
    bend = t * (1 - t) * ((1 - t) * slopes[place] - t * slopes[place + 1]) * width
    return np.where(at < edges[0], 0.0, begin + (end - begin) * t * t * (3 - 2 * t) + bend)
