"""A plain optimizer with a loss scale of its own, as `ScaledOptimizer` describes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ScaledSGD(torch.optim.SGD):
    def __init__(self, parameters: Any, *, scale: float = 4.0, lr: float = 0.1) -> None:
        super().__init__(parameters, lr=lr)
        self.scale = self.gradient_scale = scale
        self.may_skip = True
        self.last_overflow: str | None = None
        self.stand_ins: list[tuple[Tensor, Tensor]] = []

    def announce(self, loss: Tensor) -> None:
        pass

    def backward(self, loss: Tensor) -> None:
        (loss * self.scale).backward()
