"""The same step in fp64; test_last_step.py has whole trainings with planted faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundoff.replay.replayed_step import ReplayedCodeRaised
from roundoff.watch.probes.fp64_step import fp64_step, gradient_direction
from tests.replay.taped import Taped, taped


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient  # which is half of what it should be


class Calls(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def step(model: nn.Module, folder: Path, *, scale: float = 1.0, autocasts: bool = False) -> Taped:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocasts):
            loss = model(x.to(next(model.parameters()).dtype)).float().square().mean()
        (loss * scale).backward()

    return taped(folder, run)


def test_the_loss_changes_as_the_gradient_of_a_healthy_step_says(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Calls(torch.tanh)
    found = gradient_direction(step(model, tmp_path / "run").replayed_step())
    assert found is not None
    assert found.ratio == pytest.approx(1, abs=1e-3)
    assert found.functions == ()
    assert found.by_site == ()


def test_a_wrong_gradient_is_measured_parameter_by_parameter(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Calls(Doubled.apply)
    found = gradient_direction(step(model, tmp_path / "run").replayed_step())
    assert found is not None
    assert found.functions == ("Doubled",)
    ratios = {one.parameter: one.ratio for one in found.by_site}
    assert ratios["first.weight"] == pytest.approx(2, abs=1e-2)
    assert ratios["last.weight"] == pytest.approx(1, abs=1e-2)


def test_nothing_is_said_where_there_is_no_gradient(tmp_path: Path) -> None:
    model = Calls(torch.tanh)
    assert gradient_direction(step(model, tmp_path / "run", scale=0.0).replayed_step()) is None


def test_a_step_under_autocast_has_no_direction_and_one_in_fp32_no_wide_twin(tmp_path: Path) -> None:
    model = Calls(torch.tanh)
    assert gradient_direction(step(model, tmp_path / "a", autocasts=True).replayed_step()) is None
    assert fp64_step(step(model, tmp_path / "b").replayed_step()) is None


def test_zeros_that_only_the_format_made_are_counted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Calls(torch.tanh).half()
    found = fp64_step(step(model, tmp_path / "run", scale=1e-7).replayed_step())
    assert found is not None
    shares = {one.name: (one.zero_share, one.wide_zero_share) for one in found.parameters}
    assert shares["first.weight"][0] > 0.5
    assert shares["first.weight"][1] == 0
    assert found.wide_loss == pytest.approx(found.loss, rel=0.1)


def test_formats_and_gradients_are_the_trainings_own_again_also_where_a_probe_raises(tmp_path: Path) -> None:
    def narrow_only(x: Tensor) -> Tensor:
        if x.dtype is torch.float64:
            raise TypeError("no fp64 here")
        return x

    model = Calls(narrow_only)
    replayed = step(model, tmp_path / "run").replayed_step()
    gradients = [p.grad for p in model.parameters()]
    with pytest.raises(ReplayedCodeRaised, match="TypeError: no fp64 here"):
        gradient_direction(replayed)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.grad is own for p, own in zip(model.parameters(), gradients, strict=True))
