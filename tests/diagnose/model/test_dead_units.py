"""Gates that nothing gets through, and those that are only sparse."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from roundoff.diagnose.model.stuck_units import dead_units
from tests.diagnose.findings import only
from tests.diagnose.watched_training import mlp, watched_training


def test_the_dead_gate_is_named_not_the_layers_before_it(tmp_path: Path) -> None:
    model = mlp(nn.ReLU(), nn.ReLU(), nn.ReLU())
    nn.init.constant_(model[2].bias, -30.0)
    finding = only(dead_units, watched_training(tmp_path / "run", model))
    assert (finding.rule, finding.site, finding.op, finding.parameter) == ("dead-units", "3", "aten.relu#0", "2.bias")


def test_most_units_dead_is_reported_with_the_share(tmp_path: Path) -> None:
    model = mlp(nn.ReLU(), nn.ReLU())
    with torch.no_grad():
        model[2].bias[:15] = -30.0
    finding = only(dead_units, watched_training(tmp_path / "run", model))
    assert (finding.site, finding.evidence[0]["share"]) == ("3", 15 / 16)


def test_zeros_of_a_healthy_network_are_fine(tmp_path: Path) -> None:
    assert dead_units(watched_training(tmp_path / "run", mlp(nn.ReLU(), nn.Dropout(0.5), nn.ReLU()))) == []
