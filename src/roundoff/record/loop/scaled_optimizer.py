"""What an optimizer offers that scales the loss itself, as a recipe's does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from torch import Tensor


class ScaledOptimizer(Protocol):
    """An optimizer with a loss scale of its own; `precision` has one, which this room does not know."""

    @property
    def scale(self) -> float:
        """What the next loss is multiplied with."""

    @property
    def gradient_scale(self) -> float:
        """What the gradients are multiplied with now."""

    @property
    def may_skip(self) -> bool:
        """Whether a step is skipped if a gradient is not finite."""

    @property
    def last_overflow(self) -> str | None:
        """The name of the first non-finite gradient of the last step; None if the step was not skipped."""

    @property
    def stand_ins(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Parameters that the optimizer does not update itself, each with what it updates in its place."""

    def announce(self, loss: Tensor) -> None:
        """Take note that a loss, not yet scaled, is about to go backward."""


def as_scaled(optimizer: Any) -> ScaledOptimizer | None:
    """Return the optimizer if it has a loss scale of its own, else None.

    One method tells: looking at every member, as `isinstance` of a protocol does, would read the properties.
    """
    return cast(ScaledOptimizer, optimizer) if hasattr(type(optimizer), "announce") else None
