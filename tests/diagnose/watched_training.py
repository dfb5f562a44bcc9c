"""Small trainings under watch, in this process, for rules that read what the watch saw of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.runs import Run
from roundoff.watch.watching import watching


def watched_training(
    folder: Path,
    model: nn.Module,
    *,
    num_steps: int = 12,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
) -> Run:
    """Train a classifier of 8 numbers into 4 classes, and return the run that the watch left."""
    stepper = optimizer(model)
    generator = torch.Generator().manual_seed(0)
    with watching(model, stepper, to=folder):
        for _ in range(num_steps):
            x = torch.randn(16, 8, generator=generator)
            stepper.zero_grad()
            loss(model(x), x[:, :4].argmax(1)).backward()
            stepper.step()
    return Run.open(folder)


def mlp(*gates: nn.Module, width: int = 16) -> nn.Sequential:
    """A network with a layer of 16 units before each gate, and a head."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for place, gate in enumerate(gates):
        layers += [nn.Linear(width if place else 8, width), gate]
    return nn.Sequential(*layers, nn.Linear(width, 4))
