"""Binary floating-point formats of any width up to fp64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from roundoff.errors import FormatError
from roundoff.kernels.rounding_rules import OVERFLOWS, FloatGrid, Overflow, Rounding

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_TORCH_DTYPES = (
    "float64",
    "float32",
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFloat:
    """A binary floating-point format, described by the width of its fields.

    `largest` must be given, because it does not follow from the widths: e4m3 uses its infinity codes for numbers.
    `overflow` says what larger values become unless `round_to` overrides it. `bias` is subtracted from the stored
    exponent; None means the usual 2**(exponent_bits - 1) - 1. Without `signed_zero` the result is never -0.

    >>> fp16 = SmallFloat(name="fp16", exponent_bits=5, mantissa_bits=10, largest=65504.0, overflow="infinity")
    >>> fp16.smallest_normal, fp16.smallest_subnormal, fp16.torch_dtype
    (6.103515625e-05, 5.960464477539063e-08, torch.float16)
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    largest: float
    overflow: Overflow
    bias: int | None = None
    signed_zero: bool = True
    grid: FloatGrid = field(init=False, repr=False, compare=False)
    """The format as the kernels take it."""

    @classmethod
    def ieee(cls, exponent_bits: int, mantissa_bits: int, *, name: str | None = None) -> Self:
        """Return the IEEE 754 format with these widths, with infinities and subnormals.

        >>> SmallFloat.ieee(5, 10).largest
        65504.0
        """
        # Checked before `largest` is computed, so that the message is about the caller's arguments.
        name = name or f"e{exponent_bits}m{mantissa_bits}"
        _check_widths(name, exponent_bits, mantissa_bits)
        largest = math.ldexp(2.0 - 2.0**-mantissa_bits, 2 ** (exponent_bits - 1) - 1)
        return cls(
            name=name,
            exponent_bits=exponent_bits,
            mantissa_bits=mantissa_bits,
            largest=largest,
            overflow="infinity",
        )

    def __post_init__(self) -> None:
        _check_widths(self.name, self.exponent_bits, self.mantissa_bits)
        if self.overflow not in OVERFLOWS:
            raise FormatError.explain(
                f"Format '{self.name}' has the unknown overflow rule '{self.overflow}'.",
                why=f"known are {', '.join(OVERFLOWS)}.",
            )
        if self.min_exponent < -1022:
            raise FormatError.explain(
                f"Format '{self.name}' reaches below 2**-1022.",
                why=f"its bias {self.bias} puts the smallest normal number at 2**{self.min_exponent}.",
                fix="choose a smaller bias.",
            )
        if not (self.smallest_subnormal <= self.largest < math.inf) or not self._holds(self.largest):
            raise FormatError.explain(
                f"Format '{self.name}' cannot have {self.largest!r} as its largest number.",
                why=f"it has {self.mantissa_bits} mantissa bits and no number below {self.smallest_subnormal!r}.",
                fix="choose a largest number that the format holds.",
            )
        grid = FloatGrid(
            mantissa_bits=self.mantissa_bits,
            min_exponent=self.min_exponent,
            largest=self.largest,
            overflow=self.overflow,
            signed_zero=self.signed_zero,
        )
        object.__setattr__(self, "grid", grid)

    @property
    def num_bits(self) -> int:
        """Bits per number: sign, exponent and mantissa."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def min_exponent(self) -> int:
        """The exponent of the smallest normal number."""
        bias = 2 ** (self.exponent_bits - 1) - 1 if self.bias is None else self.bias
        return 1 - bias

    @property
    def max_exponent(self) -> int:
        """The exponent of the largest number."""
        return math.frexp(self.largest)[1] - 1

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number of full relative accuracy."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits)

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger number."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """The torch dtype with the same numbers, or None if torch has none."""
        import torch

        mine = (self.num_bits, self.largest, self.smallest_normal)
        dtypes: list[torch.dtype] = [getattr(torch, name) for name in _TORCH_DTYPES]
        for dtype in dtypes:
            info = torch.finfo(dtype)
            if mine == (info.bits, info.max, info.smallest_normal):
                return dtype
        return None

    def round_tensor(
        self, x: Tensor, *, rounding: Rounding, key: int, overflow: Overflow | None, out: Tensor | None
    ) -> Tensor:
        """Return `x` rounded to this format; see `round_to`."""
        from roundoff.kernels.rounding import round_float

        grid = self.grid if overflow is None else replace(self.grid, overflow=overflow)
        return round_float(x, grid, rounding=rounding, key=key, out=out)

    def _holds(self, value: float) -> bool:
        exponent = max(math.frexp(value)[1] - 1, self.min_exponent)
        return math.ldexp(value, self.mantissa_bits - exponent).is_integer()


def _check_widths(name: str, exponent_bits: int, mantissa_bits: int) -> None:
    if not (1 <= exponent_bits <= 11 and 0 <= mantissa_bits <= 52):
        raise FormatError.explain(
            f"Format '{name}' cannot have {exponent_bits} exponent bits and {mantissa_bits} mantissa bits.",
            why="a small float has 1 to 11 exponent bits and 0 to 52 mantissa bits, those of fp64.",
            fix="choose widths in that range.",
        )
