"""Rounding to the common small floats in 32-bit torch operations, several times cheaper than the general way.

The steps are those of `Quick` in csrc/small_float.h, and so are the resulting bits.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from roundoff.kernels.grid import FloatGrid
from roundoff.kernels.modes import Rounding

_INFINITY: Final = 0x7F800000
_QUIET_NAN: Final = 0x7FC00000


def can_be_quick(grid: FloatGrid, dtype: torch.dtype) -> bool:
    """Whether `round_quickly` serves this grid: not fp64, and no number of it comes near fp32's own smallest."""
    last = grid.min_exponent - grid.mantissa_bits
    if dtype == torch.float64 or not 1 <= grid.mantissa_bits <= 22 or grid.largest < 2.0**-126:
        return False
    return grid.min_exponent == -126 or (grid.min_exponent > -126 and -90 <= last <= 100)


def round_quickly(x: Tensor, grid: FloatGrid, *, rounding: Rounding, random: Tensor | None) -> Tensor:
    """Round `x` to `grid`, whose largest number its dtype holds; `random` are 31 bits each for stochastic rounding."""
    bits = x.float().view(torch.int32)
    a = bits & 0x7FFFFFFF
    negative = bits < 0
    rounded = _normal(a, negative, grid.mantissa_bits, rounding, random)
    if grid.min_exponent > -126:
        is_subnormal = a < (grid.min_exponent + 127) << 23
        small = torch.where(is_subnormal, a, 0)
        last = grid.min_exponent - grid.mantissa_bits
        rounded = torch.where(is_subnormal, _subnormal(small, negative, last, rounding, random), rounded)
    largest = _pattern_of(grid.largest)
    rounded = torch.where(rounded > largest, _beyond(a, negative, largest, grid, rounding), rounded)
    rounded = torch.where(a > _INFINITY, a, rounded)
    if not grid.signed_zero:
        negative = negative & (rounded != 0)
    return torch.where(negative, rounded | -(1 << 31), rounded).view(torch.float32).to(x.dtype)


def _normal(a: Tensor, negative: Tensor, mantissa_bits: int, rounding: Rounding, random: Tensor | None) -> Tensor:
    """Round off the last bits of the patterns."""
    shift = 23 - mantissa_bits
    low = (1 << shift) - 1
    if rounding == "nearest":
        a = a + ((a >> shift) & 1) + (low >> 1)
    elif rounding == "stochastic":
        assert random is not None
        a = a + (random >> (31 - shift)).to(torch.int32)
    elif rounding != "toward_zero":
        a = torch.where(_is_away(negative, rounding), a + low, a)
    return a & ~low


def _subnormal(small: Tensor, negative: Tensor, last: int, rounding: Rounding, random: Tensor | None) -> Tensor:
    """Round to whole multiples of 2**`last`."""
    values = small.view(torch.float32)
    if rounding == "nearest":
        magic = math.ldexp(1.0, last + 23)  # adding it rounds to such a multiple
        return ((values + magic) - magic).view(torch.int32)
    count = values * math.ldexp(1.0, -last)
    whole = count.floor()
    if rounding == "stochastic":
        assert random is not None
        carry = (((count - whole) * 2**31).to(torch.int64) + random) >> 31 != 0
        whole = torch.where(carry, whole + 1, whole)
    elif rounding != "toward_zero":
        # A count that underflowed is still not zero.
        carry = ((count > whole) | ((count == 0) & (small != 0))) & _is_away(negative, rounding)
        whole = torch.where(carry, whole + 1, whole)
    return (whole * math.ldexp(1.0, last)).view(torch.int32)


def _beyond(a: Tensor, negative: Tensor, largest: int, grid: FloatGrid, rounding: Rounding) -> Tensor:
    """Return what numbers beyond the largest become: those rounded towards zero stay at it."""
    over = {"saturate": largest, "infinity": _INFINITY, "nan": _QUIET_NAN}[grid.overflow]
    if rounding in ("nearest", "stochastic"):
        return a.new_full((), over)
    stays = torch.ones_like(negative) if rounding == "toward_zero" else ~_is_away(negative, rounding)
    return torch.where(stays & (a != _INFINITY), a.new_full((), largest), a.new_full((), over))


def _is_away(negative: Tensor, rounding: Rounding) -> Tensor:
    """Where rounding by the sign makes the magnitude grow."""
    return ~negative if rounding == "up" else negative


def _pattern_of(value: float) -> int:
    """Return the fp32 bit pattern of one positive normal number that fp32 holds."""
    fraction, exponent = math.frexp(value)
    return ((exponent + 125) << 23) + int(math.ldexp(fraction, 24))
