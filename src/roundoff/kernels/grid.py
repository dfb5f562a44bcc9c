"""The numbers a small float can hold, as the rounding kernels need to know them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from roundoff.kernels.modes import Overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatGrid:
    """Numbers with `mantissa_bits` bits after the leading one down to 2**`min_exponent`, then evenly spaced to zero."""

    mantissa_bits: int
    min_exponent: int
    largest: float
    overflow: Overflow
    signed_zero: bool = True


def _fields(dtype: torch.dtype) -> tuple[int, int, float]:
    """Return mantissa bits, exponent of the smallest normal number, and the largest number of `dtype`."""
    info = torch.finfo(dtype)
    return -round(math.log2(info.eps)), round(math.log2(info.smallest_normal)), float(info.max)


def holds(grid: FloatGrid, dtype: torch.dtype) -> bool:
    """Whether every value of `dtype`, infinities and both zeros included, is on the grid: rounding changes nothing."""
    mantissa_bits, min_exponent, largest = _fields(dtype)
    return (
        grid.mantissa_bits >= mantissa_bits
        and grid.min_exponent - grid.mantissa_bits <= min_exponent - mantissa_bits
        and grid.largest >= largest
        and grid.overflow == "infinity"
        and grid.signed_zero
    )


def within(grid: FloatGrid, dtype: torch.dtype) -> FloatGrid:
    """Return the part of the grid that `dtype` holds: `largest` becomes the largest number that both have.

    >>> fp16 = FloatGrid(mantissa_bits=10, min_exponent=-14, largest=65504.0, overflow="infinity")
    >>> within(fp16, torch.bfloat16).largest
    65280.0
    """
    mantissa_bits, _, largest = _fields(dtype)
    fraction, exponent = math.frexp(min(grid.largest, largest))
    kept = 1 + min(grid.mantissa_bits, mantissa_bits)
    return replace(grid, largest=math.ldexp(math.floor(math.ldexp(fraction, kept)), exponent - kept))
