"""Fixed point: integer multiples of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from roundoff.errors import FormatError
from roundoff.formats.format import check_saturates
from roundoff.kernels.rounding_rules import Overflow, Rounding

if TYPE_CHECKING:
    from torch import Tensor

Compat = Literal["nics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPoint:
    """Integer multiples of `step`, 2**num_bits of them, in two's complement: one more below zero than above.

    `compat="nics"` has 2**num_bits + 1 numbers instead, as many below zero as above: the quantizer of nics_fix_pt,
    clamp(round(x / step) * step, -scale, scale), which needs one more code than its bits can represent.

    Values beyond the range saturate; NaN and infinities are kept, so that they are not hidden. The quotient x / step is
    computed in fp32 (fp64 for fp64 tensors). The only zero is +0.

    >>> FixedPoint(num_bits=8, step=2.0**-7)
    FixedPoint(num_bits=8, step=0.0078125, compat=None)
    >>> FixedPoint.covering(0.5, num_bits=2, compat="nics").largest
    0.5
    """

    num_bits: int
    step: float
    compat: Compat | None = None

    @classmethod
    def covering(cls, scale: float, *, num_bits: int, compat: Compat | None = None) -> Self:
        """Return the format from -scale to scale; two's complement ends one step before +scale."""
        return cls(num_bits=num_bits, step=2.0 * scale / 2**num_bits, compat=compat)

    def __post_init__(self) -> None:
        if not 1 <= self.num_bits <= 24:
            raise FormatError.explain(
                f"Fixed point cannot have {self.num_bits} bits.",
                why="codes are computed in fp32, which holds integers of up to 24 bits exactly.",
                fix="choose 1 to 24 bits.",
            )
        if not 2.0**-100 <= self.step <= 2.0**100:
            raise FormatError.explain(
                f"Fixed point cannot have the step {self.step!r}.",
                why="a step must be between 2**-100 and 2**100.",
                fix="scale the tensor first.",
            )
        if self.compat not in (None, "nics"):
            raise FormatError.explain(
                f"Invalid compat='{self.compat}' for fixed point.",
                why="allowed: 'nics'.",
                fix="omit `compat` for two's complement.",
            )

    @property
    def name(self) -> str:
        """`qI.F` for I integer and F fractional bits; otherwise with the step, as in `fixed8(step 0.3)`."""
        fraction_bits = -math.log2(self.step)
        suffix = "" if self.compat is None else f"-{self.compat}"
        if fraction_bits.is_integer() and 0 <= fraction_bits <= self.num_bits:
            return f"q{self.num_bits - int(fraction_bits)}.{int(fraction_bits)}{suffix}"
        return f"fixed{self.num_bits}(step {self.step:g}){suffix}"

    @property
    def lowest_code(self) -> int:
        """The code of the lowest number."""
        return -(1 << self.num_bits - 1)

    @property
    def highest_code(self) -> int:
        """The code of the largest number."""
        return (1 << self.num_bits - 1) - (0 if self.compat else 1)

    @property
    def largest(self) -> float:
        """The largest number."""
        return self.highest_code * self.step

    @property
    def lowest(self) -> float:
        """The lowest number."""
        return self.lowest_code * self.step

    @property
    def smallest_normal(self) -> float:
        """The step: all numbers have the same absolute accuracy."""
        return self.step

    @property
    def smallest_subnormal(self) -> float:
        """The step."""
        return self.step

    @property
    def eps(self) -> float:
        """The step."""
        return self.step

    @property
    def overflow(self) -> Overflow:
        """Fixed point saturates."""
        return "saturate"

    def round_tensor(
        self, x: Tensor, *, rounding: Rounding, key: int, overflow: Overflow | None, out: Tensor | None
    ) -> Tensor:
        """Return `x` rounded to this format; see `round_to`."""
        from roundoff.kernels.rounding import round_fixed

        check_saturates(self.name, overflow)
        return round_fixed(
            x,
            step=self.step,
            lowest=self.lowest_code,
            highest=self.highest_code,
            rounding=rounding,
            key=key,
            out=out,
        )
