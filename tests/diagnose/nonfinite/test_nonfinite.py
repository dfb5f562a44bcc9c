"""Planted NaN and infinity are traced to their op, step, site and line; healthy runs and masks are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose import first_nonfinite
from roundoff.record import recording
from roundoff.runs import Finding, Run
from tests.diagnose.planted import BAD_STEP, At


def train_and_find(
    function: Callable[[Tensor], Tensor], folder: Path, dtype: torch.dtype = torch.float32
) -> Finding | None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Tanh(), At(function)), nn.Linear(8, 3)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(6, 4).to(dtype), torch.randint(0, 3, (6,))
    with recording(model, to=folder, inputs=True, stacks=True):
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x).float(), y).backward()
            optimizer.step()
    return first_nonfinite(Run.open(folder))


@pytest.mark.parametrize(
    ("function", "dtype", "rule", "op"),
    [
        (lambda x: torch.exp(x.abs() * 100) * 0 + x, torch.float16, "overflow", "aten.exp#0"),
        (lambda x: x * 6e4 * 6e4, torch.float16, "overflow", "aten.mul#1"),
        (lambda x: x + torch.log(x.relu() - 1), torch.float32, "domain-error", "aten.log#0"),
        (lambda x: x / (x - x), torch.float32, "domain-error", "aten.div#0"),
        (lambda x: (x.abs() * 1e30).square() + x, torch.float32, "overflow", "aten.pow#0"),
        (lambda x: x / (x.abs() * 1e-7 + 6e-8), torch.float16, "overflow", "aten.div#0"),
        (lambda x: (x * 300) @ (x * 300).T @ x, torch.float16, "overflow", "aten.mm#0"),
    ],
    ids=["exp", "mul", "log of a negative", "0/0", "square", "tiny divisor", "product"],
)
def test_names_the_step_site_op_and_line_where_it_was_planted(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype, rule: str, op: str, tmp_path: Path
) -> None:
    finding = train_and_find(function, tmp_path / "run", dtype)
    assert finding is not None
    assert (finding.rule, finding.step, finding.site, finding.op) == (rule, BAD_STEP, "1.1", op)
    assert finding.phase == "forward"
    assert finding.source is not None
    assert finding.source.startswith("tests/diagnose/nonfinite/test_nonfinite.py:")


def test_is_silent_on_a_healthy_run(tmp_path: Path) -> None:
    assert train_and_find(lambda x: x, tmp_path / "run") is None


def test_is_silent_on_a_mask_of_minus_infinity(tmp_path: Path) -> None:
    def masked(x: Tensor) -> Tensor:
        future = torch.ones(6, 6, dtype=torch.bool).triu(1)
        return torch.softmax((x @ x.T).masked_fill(future, -torch.inf), dim=-1) @ x

    assert train_and_find(masked, tmp_path / "run") is None


def test_names_a_bad_value_that_first_shows_in_backward(tmp_path: Path) -> None:
    finding = train_and_find(lambda x: torch.where(x > 0, torch.sqrt(x * (x > 0)), x), tmp_path / "run")
    assert finding is not None
    assert (finding.step, finding.site, finding.phase) == (BAD_STEP, "1.1", "backward")
