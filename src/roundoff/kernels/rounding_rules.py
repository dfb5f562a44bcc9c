"""What the rounding kernels take: rounding and overflow modes, the numbers of a small float, the rule of a scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    import torch

Range = Literal["max", "3sigma", "sweep", "percentile"]
"""What a fixed-point scale covers: the largest magnitude, three standard deviations, the best of three, or a
percentile."""

Follow = Literal["never", "data", "at_least"]
"""Whether the stored scale is kept, replaced by that of the data, or replaced only by a larger one."""

RANGES: Final[tuple[Range, ...]] = get_args(Range)
# The codes are those of csrc/fixed_point.h.
RANGE_CODES: Final = {word: code for code, word in enumerate(RANGES)}
FOLLOW_CODES: Final = {word: code for code, word in enumerate(get_args(Follow))}

SMALLEST_BOUND: Final = 1e-5
"""The smallest range, so that a tensor of zeros has a scale."""
MAX_EXPONENT: Final = 127
"""Scales are stored in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedRule:
    """The bits of fixed-point codes, and how their scale is derived from the data.

    The step is 2 * scale / 2**num_bits. Codes are two's complement; with `nics` there is one more positive code. The
    scale is the power of two that covers the range, or with `float_scale` the range itself.
    """

    num_bits: int
    nics: bool = False
    range: Range = "max"
    float_scale: bool = False
    percentile: float = 99.9

    @property
    def lowest(self) -> int:
        """The lowest code."""
        return -(1 << self.num_bits - 1)

    @property
    def highest(self) -> int:
        """The highest code."""
        return (1 << self.num_bits - 1) - (0 if self.nics else 1)

    @property
    def steps_per_scale(self) -> float:
        """The number of steps from 0 to the scale."""
        return float(2 ** (self.num_bits - 1))


Rounding = Literal["nearest", "stochastic", "toward_zero", "up", "down"]
"""`nearest` rounds ties to even; `up` and `down` mean towards +infinity and -infinity."""

Overflow = Literal["saturate", "infinity", "nan"]
"""What a value beyond the largest becomes: the largest with its sign, an infinity, or NaN."""

ROUNDINGS: Final[tuple[Rounding, ...]] = get_args(Rounding)
OVERFLOWS: Final[tuple[Overflow, ...]] = get_args(Overflow)

BlockScale = Literal["fp32", "power_of_two", "e4m3"]
"""How exact the scale of a block is; `e4m3` is relative to one fp32 scale for the whole tensor."""
BLOCK_SCALES: Final[tuple[BlockScale, ...]] = get_args(BlockScale)

# The codes are those of csrc/rounding.h.
BLOCK_SCALE_CODES: Final = {scale: code for code, scale in enumerate(BLOCK_SCALES)}
ROUNDING_CODES: Final = {rounding: code for code, rounding in enumerate(ROUNDINGS)}
OVERFLOW_CODES: Final = {overflow: code for code, overflow in enumerate(OVERFLOWS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatGrid:
    """The numbers of a small float: `mantissa_bits` bits down to 2**`min_exponent`, then evenly spaced to zero."""

    mantissa_bits: int
    min_exponent: int
    largest: float
    overflow: Overflow
    signed_zero: bool = True


def _fields(dtype: torch.dtype) -> tuple[int, int, float]:
    """Return mantissa bits, exponent of the smallest normal number, and the largest number of `dtype`."""
    import torch

    info = torch.finfo(dtype)
    return -round(math.log2(info.eps)), round(math.log2(info.smallest_normal)), float(info.max)


def holds(grid: FloatGrid, dtype: torch.dtype) -> bool:
    """Whether the grid has every value of `dtype`, infinities and both zeros included, so that rounding is a no-op."""
    mantissa_bits, min_exponent, largest = _fields(dtype)
    return (
        grid.mantissa_bits >= mantissa_bits
        and grid.min_exponent - grid.mantissa_bits <= min_exponent - mantissa_bits
        and grid.largest >= largest
        and grid.overflow == "infinity"
        and grid.signed_zero
    )


def within(grid: FloatGrid, dtype: torch.dtype) -> FloatGrid:
    """Return the part of the grid that `dtype` can hold: `largest` becomes the largest number in both.

    >>> import torch
    >>> fp16 = FloatGrid(mantissa_bits=10, min_exponent=-14, largest=65504.0, overflow="infinity")
    >>> within(fp16, torch.bfloat16).largest
    65280.0
    """
    mantissa_bits, _, largest = _fields(dtype)
    fraction, exponent = math.frexp(min(grid.largest, largest))
    kept = 1 + min(grid.mantissa_bits, mantissa_bits)
    return replace(grid, largest=math.ldexp(math.floor(math.ldexp(fraction, kept)), exponent - kept))
