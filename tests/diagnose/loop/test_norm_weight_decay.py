"""Norms that weight decay melts are named; those that hold against it, or lose little, are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.loop.norm_weight_decay import decaying_norms
from roundoff.runs import Metrics, OptimizerFacts, ParameterFacts, Run, Structure
from tests.run_folders import parameter_rows, write_run


def run_with(
    folder: Path, *, factor: float, decay: float, lr: float = 0.1, mean: float = 1.0, grad: float = 0.01
) -> Run:
    fact = ParameterFacts(
        name="norm.weight", site="norm", shape=(4,), dtype="float32", requires_grad=True, mean=mean, std=0.0
    )
    optimizer = OptimizerFacts(name="SGD", groups=({"lr": lr, "weight_decay": decay},))
    rows = [{"step": step, "parameter": "norm.weight", "l2": 2 * factor**step, "grad_l2": grad} for step in range(20)]
    metrics = [Metrics(step=step, loss=1.0, lr=lr) for step in range(20)]
    structure = Structure(step=0, parameters=(fact,), optimizers=(optimizer,))
    return write_run(folder, structure, parameter_rows(rows), metrics)


def test_norms_that_fall_as_decay_makes_them_are_named(tmp_path: Path) -> None:
    (finding,) = decaying_norms(run_with(tmp_path / "run", factor=0.95, decay=0.5))
    assert (finding.rule, finding.parameter) == ("norm-weight-decay", "norm.weight")
    assert "weight decay 0.5" in finding.why


@pytest.mark.parametrize(
    ("factor", "decay", "mean", "grad"),
    [(0.999, 0.5, 1.0, 0.01), (0.95, 0.0, 1.0, 0.01), (0.95, 0.5, 0.0, 0.01), (0.98, 0.09, 1.0, 3.0)],
    ids=["norms that hold", "no decay", "not a norm's weight", "a gradient that outweighs it"],
)
def test_other_norms_are_silent(factor: float, decay: float, mean: float, grad: float, tmp_path: Path) -> None:
    assert decaying_norms(run_with(tmp_path / "run", factor=factor, decay=decay, mean=mean, grad=grad)) == []
