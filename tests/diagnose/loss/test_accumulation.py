"""Gradients of several batches that are summed are reported; averages and several losses of one batch are silent."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundoff.diagnose.loss.factor import undivided_losses
from roundoff.record import recording
from roundoff.runs import Finding, Run, Severity


def found(folder: Path, accumulate: Callable[[nn.Module], object]) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(model, to=folder / "run", steps=[0, 1], inputs=True):
        for _ in range(2):
            optimizer.zero_grad()
            accumulate(model)
            optimizer.step()
    return undivided_losses(Run.open(folder / "run"))


def batches(model: nn.Module, *, number: int = 4, divisor: float = 1.0) -> None:
    for _ in range(number):
        (F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,))) / divisor).backward()


def divided_by_hand(model: nn.Module) -> None:
    batches(model)
    for parameter in model.parameters():
        parameter.grad /= 4


def one_batch(model: nn.Module) -> None:
    x = torch.randn(8, 4)
    for label in range(3):
        F.cross_entropy(model(x), torch.full((8,), label)).backward()


def real_and_fake(model: nn.Module) -> None:
    for target in (torch.ones(8, 3), torch.zeros(8, 3)):
        F.binary_cross_entropy_with_logits(model(torch.randn(8, 4)), target).backward()


def by_hand(model: nn.Module) -> None:
    parameters = list(model.parameters())
    for _ in range(4):
        loss = F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient


def copies(model: nn.Module) -> None:
    for replica in [model, *(copy.deepcopy(model) for _ in range(3))]:
        batches(replica, number=1)


def test_losses_that_are_not_divided_are_reported_with_their_number(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, batches)
    assert (finding.rule, finding.step, finding.severity) == ("accumulation-not-averaged", 0, Severity.WARNING)
    assert finding.fix == "divide each loss: (loss / 4).backward()"


@pytest.mark.parametrize(
    "accumulate",
    [
        lambda model: batches(model, divisor=4.0),
        lambda model: batches(model, number=1),
        divided_by_hand,
        one_batch,
        real_and_fake,
        by_hand,
        copies,
    ],
    ids=["divided", "one", "divided by hand", "one batch", "real and fake", "gradients by hand", "copies"],
)
def test_other_steps_are_silent(accumulate: Callable[[nn.Module], object], tmp_path: Path) -> None:
    assert found(tmp_path, accumulate) == []
