"""Probabilities in a loss that takes logits."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from roundoff.diagnose.model.layer_sequence import doubled_softmax
from roundoff.runs import BatchFacts
from tests.diagnose.findings import only
from tests.diagnose.watched_training import mlp, watched_training
from tests.run_folders import write_run


def test_the_softmax_before_the_loss_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(*mlp(nn.ReLU()), nn.Softmax(dim=1))
    finding = only(doubled_softmax, watched_training(tmp_path / "run", model))
    assert (finding.rule, finding.site, finding.op) == ("double-softmax", "3", "aten._softmax#0")


def test_rows_that_sum_to_one_are_enough(tmp_path: Path) -> None:
    seen = [BatchFacts(step=s, criterion="cross_entropy", rows_sum_to_one=True, num_classes=4) for s in range(3)]
    assert only(doubled_softmax, write_run(tmp_path / "run", seen)).site is None


def test_logits_log_probabilities_and_single_outputs_are_fine(tmp_path: Path) -> None:
    assert doubled_softmax(watched_training(tmp_path / "logits", mlp(nn.ReLU()))) == []
    right = watched_training(
        tmp_path / "right", mlp(nn.ReLU()), loss=lambda x, y: F.nll_loss(torch.log_softmax(x, dim=1), y)
    )
    assert doubled_softmax(right) == []
    seen = [BatchFacts(step=s, criterion="cross_entropy", rows_sum_to_one=True, num_classes=1) for s in range(3)]
    assert doubled_softmax(write_run(tmp_path / "one", seen)) == []
