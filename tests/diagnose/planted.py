"""Small trainings with a fault in them, recorded step by step for the diagnoses to find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from torch import Tensor, nn

from roundoff.record import recording
from roundoff.runs import Anomaly, Metrics, Origin, ReplayInfo, Run, replay_path, to_json
from tests.run_folders import write_run

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
    steps: Sequence[int] | None = None,
) -> Run:
    """Train a few steps on random numbers and return what was recorded of all or some of them."""
    model = model.to(dtype)
    stepper = optimizer(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 4, generator=generator).to(dtype), torch.randint(0, 3, (6,), generator=generator)
    with recording(model, to=folder, steps=steps, inputs=inputs, stacks=True):
        for step in range(num_steps):
            stepper.zero_grad()
            loss(model(batch(x, step)), labels(y, step)).backward()
            stepper.step()
    return Run.open(folder)


def watched(
    folder: Path,
    training: Callable[[Path], Run],
    *,
    step: int = BAD_STEP,
    anomalies: Sequence[Anomaly] = (),
    losses: Sequence[float] = (1.5, 1.4, 1.3, 1.2),
    skipped: Sequence[int] = (),
    recipe: str | None = None,
    origin: Origin | None = None,
    replay_info: ReplayInfo | None = None,
    batch: Mapping[str, np.ndarray] | None = None,
) -> Run:
    """Write the folder that a watch leaves: metrics, anomalies, and the replay of one step."""
    metrics = [Metrics(step=number, loss=loss, skipped=number in skipped) for number, loss in enumerate(losses)]
    write_run(folder, metrics, *anomalies, recipe=recipe)
    replay = replay_path(folder, step=step)
    training(replay)
    for name, value in (("origin", origin), ("replay", replay_info)):
        if value is not None:
            (replay / f"{name}-rank0.json").write_text(to_json(asdict(value)))
    if batch is not None:
        save_file(dict(batch), replay / "batch-rank0.safetensors")
    return Run.open(folder)
