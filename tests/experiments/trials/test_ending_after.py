"""A trial ends between two steps, wherever the watch's hooks are, and leaves torch as it was."""

from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff import apply_recipe
from roundoff.experiments.trials.targets import ending_after
from roundoff.runs import Run
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import start_watching


def train() -> None:
    model: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), "half")
    for _ in range(6):
        optimizer.zero_grad()
        optimizer.backward(model(torch.ones(2, 4)).sum())
        optimizer.step()


@pytest.mark.parametrize("watches_first", [True, False])
def test_a_trial_ends_before_a_recipe_computes_whichever_hook_runs_first(tmp_path: Path, watches_first: bool):
    watch = start_watching(to=tmp_path / "run", settings=WatchSettings())
    ending = ending_after(3, of=watch)
    blocks = [watch.running(), ending] if watches_first else [ending, watch.running()]
    with pytest.raises(SystemExit), blocks[0], blocks[1]:
        train()
    assert nn.Linear(2, 2).weight.dtype is torch.float32
    assert [metric.step for metric in Run.open(tmp_path / "run").metrics()] == [0, 1, 2]
