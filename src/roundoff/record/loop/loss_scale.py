"""The scale that a loss is multiplied with before it goes backward, and the loss without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from roundoff.record.loop.scaled_optimizer import ScaledOptimizer
from roundoff.record.reference.op_call import list_tensors
from roundoff.record.torch_private import hidden_from_modes, scale_of


class LossScale:
    """Follows how losses are scaled: by a GradScaler, or by an optimizer that has a scale of its own."""

    def __init__(self) -> None:
        self.value: Tensor | None = None
        """What the loss of the open step was multiplied with last; None if with nothing."""
        self._plain_of: list[tuple[Tensor, Tensor]] = []
        self._announced: Tensor | None = None

    def see_scaler(self, scaler: Any) -> None:
        """Keep what a scaler multiplies the loss with now; it changes before the step closes."""
        scale = scale_of(scaler)
        if scale is not None:
            with hidden_from_modes():
                self.value = scale.detach().clone()

    def see_scaled(self, scaled: Any, outputs: Any) -> None:
        """Remember which loss a scaled one was before."""
        self._plain_of.extend(zip(list_tensors(scaled), list_tensors(outputs), strict=False))

    def see_announced(self, optimizer: ScaledOptimizer, loss: Any) -> None:
        """Remember the loss that an optimizer with a scale of its own is about to scale."""
        self._announced = loss if isinstance(loss, Tensor) else None
        self.value = None if optimizer.scale == 1 else torch.tensor(optimizer.scale, dtype=torch.float64)

    def is_scaled(self, roots: Sequence[Any]) -> bool:
        """Say whether a scaler made what backward starts from."""
        return any(scaled is root for root in roots for scaled, _ in self._plain_of)

    def without_scale(self, root: Tensor) -> Tensor:
        """Return what the loss that backward starts from was before it was scaled; an announced one counts once."""
        announced, self._announced = self._announced, None
        known = root if announced is None else announced
        return next((plain for scaled, plain in self._plain_of if scaled is root), known)

    def new_step(self) -> None:
        """Forget the step that closed."""
        self.value = None
        self._plain_of.clear()
