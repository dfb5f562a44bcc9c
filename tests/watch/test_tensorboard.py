"""A watched training, as TensorBoard shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from roundoff.runs import Run
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import start_watching


def train(num_steps: int) -> nn.Module:
    """Train a small net, and return it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
    return model


@pytest.fixture
def settings(tmp_path: Path) -> WatchSettings:
    return WatchSettings(tensorboard=tmp_path / "board", every_step=True, probe_seconds=0)


def board_in(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = accumulator.EventAccumulator(str(folder), size_guidance={"histograms": 0})
    board.Reload()
    return board


def test_the_scalars_are_those_of_the_run_and_histograms_come_now_and_then(
    tmp_path: Path, settings: WatchSettings
) -> None:
    watch = start_watching(to=tmp_path / "run", settings=settings)
    with watch.running():
        watched = train(101)
    board, metrics = board_in(tmp_path / "board"), Run.open(tmp_path / "run").metrics()
    for name in ("loss", "grad_norm", "lr"):
        seen = {event.step: event.value for event in board.Scalars(name)}
        assert seen == pytest.approx({each.step: getattr(each, name) for each in metrics})
    assert [event.step for event in board.Histograms("gradients/2.weight")] == [0, 100]
    assert [event.histogram_value.num for event in board.Histograms("weights/0.bias")] == [8.0, 8.0]
    assert all(map(torch.equal, watched.parameters(), train(101).parameters()))
