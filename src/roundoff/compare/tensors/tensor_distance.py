"""How far apart two whole tensors are, where, and whether their formats explain it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roundoff.formats import eps_of_dtype

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from roundoff.kernels.differences import Difference

LOCAL = 0.9
"""A difference is local if at least this share of its square is in one channel."""
WIDE_ULPS = 64
"""The error that results of fp32 and wider may have, from the order of long sums."""
NARROW_ULPS = 2
"""The error that results of narrower formats may have, from rounding each result of a wide sum."""
GROWTH = 4
"""Earlier errors grow by at most this factor from one saved tensor to the next."""
MAX_SHARE_OF_NORM = 0.25
"""No format explains a larger relative error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDistance:
    """How far a candidate's tensor is from its reference, over the elements that are finite in both."""

    is_equal: bool
    """Bit for bit."""
    max_abs: float
    """The largest difference of two elements."""
    relative: float
    """The norm of the difference over the norm of the reference; infinite if that is 0 and the other is not."""
    cosine: float
    """Of the angle between the two; NaN if one of them is 0."""
    position: tuple[int, ...] | None
    """Where the largest difference is, or the first value that is finite in one only; None if nothing differs."""
    values: tuple[float, float] | None
    """What the two hold there."""
    channel: int | None
    """The channel in which they differ, if it is only one: of the second dimension if there are four, else the last."""
    num_different: int
    num_nonfinite: tuple[int, int]
    """NaN and infinities of the reference and of the candidate."""
    num_unlike: int
    """Elements that are finite in only one, or NaN in one and infinite in the other."""
    unit: str
    """The coarser of the two dtypes."""
    ulps: float
    """The relative error in units of that dtype's eps; infinite for whole numbers that differ."""

    def is_explained(self, *, inherited: float = 0.0) -> bool:
        """Return whether formats explain the difference, given the largest earlier relative error."""
        eps = eps_of_dtype(self.unit)
        if self.num_unlike or (not eps and self.num_different):
            return False
        is_wide = eps <= eps_of_dtype("float32")
        own = (WIDE_ULPS if is_wide else NARROW_ULPS) * eps
        return self.relative <= min(MAX_SHARE_OF_NORM, max(own, GROWTH * inherited))


def measure_distance(reference: Tensor, candidate: Tensor) -> TensorDistance:
    """Measure two tensors of one shape, of any dtypes, in one pass over both."""
    from roundoff.kernels.differences import difference

    found = difference(reference, candidate)
    unit = coarser_name(reference.dtype, candidate.dtype)
    at = found.first_unlike if found.num_unlike else found.largest_at
    if at is not None and (reference.is_complex() or candidate.is_complex()):
        at //= 2
    position = _position(at, reference.shape)
    eps = eps_of_dtype(unit)
    return TensorDistance(
        is_equal=found.is_same_bits,
        max_abs=found.largest,
        relative=found.relative,
        cosine=found.cosine,
        position=position,
        values=_values(reference, candidate, position),
        channel=_channel(reference, candidate, position, found),
        num_different=found.num_different,
        num_nonfinite=found.num_nonfinite,
        num_unlike=found.num_unlike,
        unit=unit,
        ulps=found.relative / eps if eps else math.inf if found.num_different else 0.0,
    )


def coarser_name(first: torch.dtype, second: torch.dtype) -> str:
    """Return the name of the dtype with the larger distance between numbers; whole numbers have none."""
    return max((str(dtype).removeprefix("torch.") for dtype in (first, second)), key=eps_of_dtype)


def _position(at: int | None, shape: torch.Size) -> tuple[int, ...] | None:
    return None if at is None else tuple(int(index) for index in np.unravel_index(at, shape))


def _values(reference: Tensor, candidate: Tensor, position: tuple[int, ...] | None) -> tuple[float, float] | None:
    if position is None:
        return None
    first, second = (x[position] for x in (reference, candidate))
    return float(abs(first) if first.is_complex() else first), float(abs(second) if second.is_complex() else second)


def _channel(reference: Tensor, candidate: Tensor, position: tuple[int, ...] | None, found: Difference) -> int | None:
    """Return the channel of the largest difference if nearly all of the difference is there."""
    if position is None or reference.ndim < 2 or found.num_unlike or not found.square:
        return None
    dim = 1 if reference.ndim >= 4 else reference.ndim - 1
    if reference.shape[dim] < 2:
        return None
    from roundoff.kernels.differences import difference

    channel = position[dim]
    inside = difference(reference.select(dim, channel), candidate.select(dim, channel))
    return channel if inside.square >= LOCAL * found.square else None
