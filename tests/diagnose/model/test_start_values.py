"""Weights that start so that they cannot learn, and constants that do."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from roundoff.diagnose.model.stuck_units import stuck_start_values
from tests.diagnose.findings import only
from tests.diagnose.watched_training import mlp, watched_training


def filled(model: nn.Module, value: float) -> nn.Module:
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


@pytest.mark.parametrize("gate", [nn.ReLU(), nn.Sigmoid()], ids=["no gradient", "equal gradients"])
def test_weights_that_start_at_0_and_stay_alike_are_named(gate: nn.Module, tmp_path: Path) -> None:
    finding = only(stuck_start_values, watched_training(tmp_path / "run", filled(mlp(gate), 0.0)))
    assert (finding.rule, finding.site, finding.parameter) == ("zero-init", "0", "0.weight")


def test_weights_that_start_alike_are_named(tmp_path: Path) -> None:
    finding = only(stuck_start_values, watched_training(tmp_path / "run", filled(mlp(nn.Tanh()), 0.05)))
    assert (finding.rule, finding.site, finding.parameter) == ("symmetric-init", "0", "0.weight")


def test_a_head_that_starts_at_0_and_a_constant_bias_learn(tmp_path: Path) -> None:
    model = mlp(nn.ReLU())
    nn.init.zeros_(model[2].weight)
    nn.init.constant_(model[0].bias, 0.1)
    assert stuck_start_values(watched_training(tmp_path / "run", model)) == []
