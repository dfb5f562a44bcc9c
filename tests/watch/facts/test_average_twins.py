"""Copies of a model that follow it, as a whole or in part."""

from __future__ import annotations

import copy

import torch
from torch import nn

from roundoff.replay.state import Training
from roundoff.watch.facts.average_twins import FIRST_STEP, AverageTwins


def trained_and_averaged(*, buffers: bool) -> tuple[int, tuple[str, ...]]:
    """Return how many tensors an average followed, and which it did not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    average = copy.deepcopy(model).eval()
    training = Training()
    training.add_model(model)
    twins = AverageTwins(training)
    twins.step_ended(FIRST_STEP)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(16, 4) + 1).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for slow, live in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(live, 0.1)
            for slow, live in zip(average.buffers(), model.buffers(), strict=True):
                if buffers:
                    slow.copy_(live)
    found = twins.see(average, 14)
    assert found is not None
    assert twins.see(model, 14) is None
    return found.num_followed, found.still


def test_buffers_that_stay_at_their_start_values_are_named() -> None:
    num_followed, still = trained_and_averaged(buffers=False)
    assert num_followed > 0
    assert still == ("1.running_mean", "1.running_var")


def test_an_average_of_everything_is_complete() -> None:
    assert trained_and_averaged(buffers=True)[1] == ()
