"""How a fixed-point scale is found, as the kernels need to know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Range = Literal["max", "3sigma", "sweep", "percentile"]
"""What the scale covers: the largest magnitude, three standard deviations, the best of three, or most elements."""

Follow = Literal["never", "data", "at_least"]
"""Whether the stored scale is kept, replaced by that of the data, or replaced only if the data reaches further."""

RANGES: Final[tuple[Range, ...]] = get_args(Range)
# Places are shared with csrc/fixed_point.h.
RANGE_CODES: Final = {word: code for code, word in enumerate(RANGES)}
FOLLOW_CODES: Final = {word: code for code, word in enumerate(get_args(Follow))}

SMALLEST_BOUND: Final = 1e-5
"""No range is smaller, so that a tensor of zeros has a scale."""
MAX_EXPONENT: Final = 127
"""Scales are kept in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedRule:
    """Codes of `num_bits` bits, and the range that a scale takes from the data.

    The step is 2 * scale / 2**num_bits. Codes are two's complement; with `nics` there is one more above zero. The scale
    is the power of two that covers the range, or with `float_scale` the range itself.
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
        """How many steps make the scale."""
        return float(2 ** (self.num_bits - 1))
