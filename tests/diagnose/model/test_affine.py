"""Layers without anything between them, and networks that need nothing there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.diagnose.model.layer_sequence import affine_networks
from tests.diagnose.findings import only
from tests.diagnose.watched_training import mlp, watched_training


def test_layers_with_dropout_alone_between_them_are_named(tmp_path: Path) -> None:
    finding = only(affine_networks, watched_training(tmp_path / "run", mlp(nn.Dropout(0.1), nn.Identity())))
    assert (finding.rule, str(finding.severity), finding.site) == ("affine-network", "warning", "0")
    assert finding.evidence[0] == {"sites": ["0", "2", "4"]}


@pytest.mark.parametrize(
    "model",
    [
        mlp(nn.ReLU(), nn.Identity()),
        mlp(nn.LayerNorm(16)),
        nn.Linear(8, 4),
        nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 4)),
    ],
    ids=["relu", "norm", "one layer", "bottleneck"],
)
def test_a_nonlinearity_one_layer_and_a_bottleneck_are_fine(model: nn.Module, tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert affine_networks(watched_training(tmp_path / "run", model)) == []
