"""An overflow under an emulated recipe is that of the op whose result was rounded, not of the rounding."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import roundoff
from roundoff.diagnose import diagnose_run
from roundoff.runs import Finding, Run


class Scores(nn.Module):
    """Multiplies before it divides."""

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.T
        return (scores / 1e4).softmax(-1) @ x


def train(*, too_large_at: int | None) -> None:
    """Train for four steps in emulated fp16; in one of them the products may be beyond it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), Scores(), nn.Linear(8, 2))
    sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
    model, optimizer = roundoff.apply_recipe(net, sgd, "half", arithmetic="emulated")
    for step in range(4):
        x = torch.randn(6, 4) * (800 if step == too_large_at else 1)
        optimizer.backward(model(x).float().square().mean())
        optimizer.step()
        optimizer.zero_grad()


def overflows(folder: Path) -> list[Finding]:
    found = diagnose_run(Run.open(folder)).findings
    return [each for each in found if each.rule == "overflow"]


def test_the_op_and_the_format_are_named(tmp_path: Path) -> None:
    with roundoff.watching(to=tmp_path / "run"):
        train(too_large_at=2)
    (finding,) = overflows(tmp_path / "run")
    assert (finding.step, finding.site, finding.op) == (2, "1", "aten.mm#0")
    assert finding.title == "fp16 matmul overflowed"
    assert "exceeds 65504; before rounding it is finite" in finding.why
    assert "fp64" not in finding.why
    assert finding.fix.startswith(
        'keep this layer wide:  apply_recipe(model, optimizer, "half", overrides={"1": "fp32"})\n'
        "or scale its factors before the matmul"
    )


def test_where_the_rounding_was_not_caught_the_op_is_named_all_the_same(tmp_path: Path) -> None:
    with roundoff.recording(to=tmp_path / "run", steps=range(4), inputs=True):
        train(too_large_at=2)
    (finding,) = overflows(tmp_path / "run")
    assert (finding.step, finding.site, finding.op) == (2, "1", "aten.mm#0")
    assert finding.title == "matmul overflowed in the recipe's format"


def test_a_training_that_fits_is_left_in_peace(tmp_path: Path) -> None:
    with roundoff.watching(to=tmp_path / "run"):
        train(too_large_at=None)
    assert overflows(tmp_path / "run") == []
