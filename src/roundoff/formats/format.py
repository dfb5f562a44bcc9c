"""The interface of every number format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from roundoff.errors import FormatError
from roundoff.kernels.rounding_rules import Overflow, Rounding

if TYPE_CHECKING:
    from torch import Tensor


class Format(Protocol):
    """A set of numbers, and how to round a tensor to it. `round_to` accepts any object with this interface."""

    @property
    def name(self) -> str:
        """The name in recipes and messages."""

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

    def round_tensor(
        self, x: Tensor, *, rounding: Rounding, key: int, overflow: Overflow | None, out: Tensor | None
    ) -> Tensor:
        """Return `x` rounded to the format, in `out` if given. Call `round_to` instead, which draws `key`."""


def check_saturates(name: str, overflow: Overflow | None) -> None:
    """Raise if another overflow rule is requested of a format that can only saturate."""
    if overflow not in (None, "saturate"):
        raise FormatError.explain(
            f"Format '{name}' cannot overflow to '{overflow}'.",
            why="it only saturates: values that are too large become its largest number.",
            fix="omit `overflow`.",
        )
