"""A norm over two samples is named; over more, in eval mode or over pixels of one sample it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.diagnose.model.batch_statistics import tiny_norm_batches
from roundoff.runs import Run, Severity
from roundoff.watch.watching import watching
from tests.diagnose.findings import only


def train(folder: Path, norm: nn.Module, *shape: int) -> Run:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), norm, nn.Flatten(), nn.LazyLinear(2))
    model(torch.randn(4, *shape[1:]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, to=folder):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(*shape)).pow(2).sum().backward()
            optimizer.step()
    return Run.open(folder)


@pytest.mark.parametrize("size", [1, 4])
def test_two_samples_are_too_few(size: int, tmp_path: Path) -> None:
    finding = only(tiny_norm_batches, train(tmp_path / "run", nn.BatchNorm2d(4), 2, 3, size, size))
    assert (finding.rule, finding.severity, finding.site) == ("tiny-norm-batch", Severity.WARNING, "1")
    assert f"come from {2 * size * size} values of 2 samples" in finding.why


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4).eval(), nn.InstanceNorm2d(4), nn.GroupNorm(2, 4)], ids=str)
def test_norms_that_do_not_look_at_the_batch_are_fine(norm: nn.Module, tmp_path: Path) -> None:
    assert tiny_norm_batches(train(tmp_path / "run", norm, 2, 3, 4, 4)) == []


def test_more_samples_are_fine(tmp_path: Path) -> None:
    assert tiny_norm_batches(train(tmp_path / "run", nn.BatchNorm2d(4), 8, 3, 1, 1)) == []
