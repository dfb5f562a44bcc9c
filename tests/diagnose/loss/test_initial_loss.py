"""A first loss far above guessing, because of the head; and one that is as it should be."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from roundoff.diagnose.loss.course import initial_losses
from tests.diagnose.findings import only
from tests.diagnose.watched_training import mlp, watched_training


def test_the_head_is_named_with_what_guessing_costs(tmp_path: Path) -> None:
    model = mlp(nn.ReLU())
    with torch.no_grad():
        model[2].weight.mul_(50)
    finding = only(initial_losses, watched_training(tmp_path / "run", model))
    assert (finding.rule, finding.step, finding.site, finding.parameter) == ("initial-loss", 0, "2", "2.weight")
    assert "while guessing gives 1.39" in finding.title


def test_a_loss_near_guessing_is_fine(tmp_path: Path) -> None:
    assert initial_losses(watched_training(tmp_path / "run", mlp(nn.ReLU()))) == []
