"""The loss scale, optimizers that have one of their own, and the loss without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast
from weakref import ref

import torch
from torch import Tensor

from roundoff.record.reference.op_call import list_tensors
from roundoff.torch_private import hidden_from_modes, scale_of


class ScaledOptimizer(Protocol):
    """An optimizer with a loss scale of its own, as in `precision`, which is on this floor and cannot be imported."""

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
        """Note that a loss, not yet scaled, is about to go backward."""


def as_scaled(optimizer: Any) -> ScaledOptimizer | None:
    """Return the optimizer if it has a loss scale of its own, else None.

    One method is checked: `isinstance` with a protocol would read every property.
    """
    return cast(ScaledOptimizer, optimizer) if hasattr(type(optimizer), "announce") else None


class LossScale:
    """Follows how losses are scaled: by a GradScaler, or by an optimizer that has a scale of its own."""

    def __init__(self) -> None:
        self.value: Tensor | None = None
        """What the loss of the open step was multiplied with last; None if with nothing."""
        self._plain_of: list[tuple[ref[Tensor], ref[Tensor], Tensor]] = []
        """Scaled losses with the unscaled ones and their values; weakly, so that a graph the script drops is freed."""
        self._announced: Tensor | None = None

    def see_scaler(self, scaler: Any) -> None:
        """Keep the present scale of a scaler; it changes before the step closes."""
        scale = scale_of(scaler)
        if scale is not None:
            with hidden_from_modes():
                self.value = scale.detach().clone()

    def see_scaled(self, scaled: Any, outputs: Any) -> None:
        """Remember the unscaled loss of a scaled one."""
        pairs = zip(list_tensors(scaled), list_tensors(outputs), strict=False)
        self._plain_of.extend((ref(after), ref(before), before.detach()) for after, before in pairs)

    def see_announced(self, optimizer: ScaledOptimizer, loss: Any) -> None:
        """Remember the loss that an optimizer with a scale of its own is about to scale."""
        self._announced = loss if isinstance(loss, Tensor) else None
        self.value = None if optimizer.scale == 1 else torch.tensor(optimizer.scale, dtype=torch.float64)

    @property
    def has_scaled(self) -> bool:
        """Whether a scaler has made anything in the open step."""
        return bool(self._plain_of)

    @property
    def is_plain(self) -> bool:
        """Whether nothing has scaled a loss since the last backward."""
        return not self._plain_of and self._announced is None

    def is_scaled(self, roots: Sequence[Any]) -> bool:
        """Return whether a scaler made what backward starts from."""
        return any(scaled() is root for root in roots for scaled, _, _ in self._plain_of)

    def without_scale(self, root: Tensor) -> Tensor:
        """Return what the loss that backward starts from was before it was scaled; an announced one counts once."""
        announced, self._announced = self._announced, None
        known = root if announced is None else announced
        for scaled, plain, value in self._plain_of:
            if scaled() is root:
                live = plain()
                return value if live is None else live
        return known

    def new_step(self) -> None:
        """Forget the step that closed."""
        self.value = None
        self._plain_of.clear()
