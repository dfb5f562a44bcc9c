"""Undoing an optimizer's step that turned out bad in the middle, as steps with closures can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from roundoff.precision.weights import Weight


class Overflowed(Exception):
    """A closure's gradients are not finite. It leaves the optimizer's step, and goes no further."""


class Undo:
    """Main weights and optimizer state as they are now."""

    def __init__(self, weights: Sequence[Weight], optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._mains = [weight.main for weight in weights]
        self._values = [main.detach().clone() for main in self._mains]
        self._state = {main: _copied(state) for main, state in optimizer.state.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Make it as it was."""
        for main, value in zip(self._mains, self._values, strict=True):
            main.copy_(value)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value
