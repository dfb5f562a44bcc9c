"""A loss that falls forever because a sign or a log is missing is reported; one without a bound by nature is silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose.loss.factor import unbounded_losses
from roundoff.record import recording
from roundoff.runs import Finding, Run

LABELS = torch.arange(32) % 3


def found(folder: Path, loss_of: Callable[[Tensor], Tensor]) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    with recording(model, to=folder / "run", steps=[0], inputs=True):
        for _ in range(60):
            optimizer.zero_grad()
            loss_of(model(torch.randn(32, 4))).backward()
            optimizer.step()
    return unbounded_losses(Run.open(folder / "run"))


def log_probabilities(scores: Tensor) -> Tensor:
    return scores.log_softmax(1).gather(1, LABELS[:, None])


@pytest.mark.parametrize(
    ("loss_of", "title"),
    [
        (lambda scores: -F.cross_entropy(scores, LABELS), "the sign of the loss is flipped"),
        (lambda scores: -(scores - 1).pow(2).mean(), "the sign of the loss is flipped"),
        (lambda scores: log_probabilities(scores).mean(), "the loss lacks its minus sign"),
        (lambda scores: F.nll_loss(scores, LABELS), "nll_loss gets scores instead of log-probabilities"),
    ],
    ids=["minus", "by hand", "no minus", "no log"],
)
def test_a_loss_that_falls_for_ever_is_reported(
    loss_of: Callable[[Tensor], Tensor], title: str, tmp_path: Path
) -> None:
    (finding,) = found(tmp_path, loss_of)
    assert (finding.rule, finding.title) == ("loss-unbounded-below", title)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda scores: F.cross_entropy(scores, LABELS),
        lambda scores: scores[:, 0].mean() - scores[:, 1].mean(),
        lambda scores: -scores.mean(),
    ],
    ids=["bounded", "critic", "score"],
)
def test_losses_with_a_bound_or_without_one_by_nature_are_silent(
    loss_of: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    assert found(tmp_path, loss_of) == []
