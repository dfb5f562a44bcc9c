"""A replayed step: played again in the state it started from."""

from __future__ import annotations

import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundoff.replay.player import OutOfTime
from roundoff.replay.replayed_step import ReplayedStep, cut_batch, mean_loss
from tests.replay.taped import Taped, taped

Pair = namedtuple("Pair", "inputs mask")


class Flexible(nn.Linear):
    def forward(self, given: Any) -> Tensor:
        if isinstance(given, Pair):
            return super().forward(given.inputs)
        return super().forward(given["inputs"] if isinstance(given, dict) else given)


def trained(model: nn.Module, given: Any, folder: Path, *, num_steps: int = 1) -> Taped:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(given).square().mean().backward()
        optimizer.step()

    return taped(folder, step, num_steps=num_steps)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (torch.ones(4, 2), 4),
        ({"inputs": torch.ones(3, 2)}, 3),
        (Pair(torch.ones(5, 2), torch.ones(5)), 5),
        (torch.ones(1, 2), None),
    ],
    ids=["tensor", "dict", "named tuple", "single sample"],
)
def test_the_batch_is_as_large_as_what_the_first_model_was_given(given: Any, size: int | None, tmp_path: Path) -> None:
    model = Flexible(2, 2)
    assert trained(model, given, tmp_path / "run").replayed_step().batch_size == size


def test_a_step_comes_out_as_it_did_and_leaves_the_training_alone(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    result = trained(model, torch.ones(4, 2), tmp_path / "run", num_steps=3)
    now = [p.detach().clone() for p in model.parameters()]
    step = result.replayed_step()
    for _ in range(2):
        with step.in_state():
            assert mean_loss(step.play()) == result.tape.losses[0].item()
    assert all(map(torch.equal, now, model.parameters()))


def test_the_forward_alone_does_without_what_uses_the_gradients(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        for given in (torch.ones(4, 2), torch.zeros(4, 2)):
            model(given).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            assert model.bias.grad is not None
            model.bias.grad.add_(2 * model.bias.grad.norm())
        optimizer.step()

    result = taped(tmp_path / "run", step)
    replayed = result.replayed_step()
    with replayed.in_state():
        losses = replayed.play(forward_only=True).losses
    assert torch.equal(torch.stack(losses), torch.stack(result.tape.losses))


def test_a_step_without_losses_has_no_mean(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    step = taped(tmp_path / "run", lambda: model(torch.ones(3, 2))).replayed_step()
    with step.in_state():
        assert mean_loss(step.play()) is None


def test_plain_optimizers_do_not_round_on_purpose(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    assert not trained(model, torch.ones(4, 2), tmp_path / "run").replayed_step().rounds_on_purpose


def test_only_what_is_as_long_as_the_batch_is_cut() -> None:
    assert cut_batch(torch.arange(4), 4, slice(2)).tolist() == [0, 1]
    assert cut_batch(torch.arange(3), 4, slice(2)).tolist() == [0, 1, 2]
    assert cut_batch(torch.tensor(4), 4, slice(2)).item() == 4


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.num_calls = 0
        self.seconds = 0.0

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(100):
            time.sleep(self.seconds)
            self.num_calls += 1
            x = self.layer(x)
        return x


def test_a_model_that_takes_long_is_ended_when_the_time_is_over(tmp_path: Path) -> None:
    model = Slow()
    result = trained(model, torch.ones(1, 2), tmp_path / "run")
    step = ReplayedStep(result.training, *result.path, result.sites, until=time.monotonic() + 0.2)
    with step.in_state():
        model.num_calls, model.seconds = 0, 0.05
        with pytest.raises(OutOfTime):
            step.play()
        assert model.num_calls < 10
    model(torch.ones(1, 2))  # nothing of ours ends it now
