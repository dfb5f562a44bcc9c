"""Small trainings with a fault in them, recorded step by step for the diagnoses to find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.record import recording
from roundoff.runs import Run

BAD_STEP = 2
NUM_STEPS = 4


class At(nn.Module):
    """Applies a function, from a certain step on."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return self.function(x) if self.num_calls > BAD_STEP else x


def mlp_with(function: Callable[[Tensor], Tensor]) -> nn.Sequential:
    """A small network with a function at site `1.1`."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Tanh(), At(function)), nn.Linear(8, 3))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels)


def train(
    model: nn.Module,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    batch: Callable[[Tensor, int], Tensor] = lambda x, step: x,
    labels: Callable[[Tensor, int], Tensor] = lambda y, step: y,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    num_steps: int = NUM_STEPS,
    inputs: bool = True,
    to_input: Callable[[Tensor], Tensor] = lambda x: x,
) -> Run:
    """Train a few steps on random numbers and return what was recorded of every one."""
    model = model.to(dtype)
    stepper = optimizer(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 4, generator=generator).to(dtype), torch.randint(0, 3, (6,), generator=generator)
    with recording(model, to=folder, inputs=inputs, stacks=True):
        for step in range(num_steps):
            stepper.zero_grad()
            loss(model(to_input(batch(x, step))), labels(y, step)).backward()
            stepper.step()
    return Run.open(folder)
