"""What every number format can do."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from roundoff.errors import FormatError
from roundoff.kernels.rounding_rules import Overflow, Rounding


class Format(Protocol):
    """A set of numbers, and how to move a tensor's values into it. Any object like this serves `round_to`."""

    @property
    def name(self) -> str:
        """What recipes and messages call it."""

    @property
    def num_bits(self) -> float:
        """Bits per number, shared scales included."""

    @property
    def largest(self) -> float:
        """The largest finite number."""

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number of full relative accuracy."""

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number."""

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger number."""

    @property
    def overflow(self) -> Overflow:
        """What a value beyond `largest` becomes."""

    def rounded(
        self, x: Tensor, *, rounding: Rounding, key: int, overflow: Overflow | None, out: Tensor | None
    ) -> Tensor:
        """Return `x` rounded to the format, in `out` if given. Call `round_to`, which checks and draws `key`."""


def check_saturates(name: str, overflow: Overflow | None) -> None:
    """Raise if a format that can only saturate is told to overflow in another way."""
    if overflow not in (None, "saturate"):
        raise FormatError.explain(
            f"Format '{name}' cannot overflow to '{overflow}'.",
            why="it only saturates: what is too large becomes its largest number.",
            fix="leave `overflow` away.",
        )
