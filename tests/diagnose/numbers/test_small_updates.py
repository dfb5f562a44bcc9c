"""Narrow weights that do not follow their updates are named; those of a warm-up, or wide ones, are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.numbers.underflow import updates_below_ulp
from roundoff.runs import Metrics, ParameterFacts, Run, Structure
from tests.run_folders import parameter_rows, write_run


def run_with(folder: Path, changed: list[float], *, dtype: str = "float16", rates: list[float] | None = None) -> Run:
    fact = ParameterFacts(
        name="a.weight", site="a", shape=(10, 10), dtype=dtype, requires_grad=True, optimizers=("SGD",)
    )
    rows = [
        {"step": step, "parameter": "a.weight", "grad_l2": 1.0, "grad_zero_share": 0.0, "changed_fraction": share}
        for step, share in enumerate(changed)
    ]
    lrs = rates or [1e-4] * len(changed)
    metrics = [Metrics(step=step, loss=1.0, lr=lr) for step, lr in enumerate(lrs)]
    return write_run(folder, Structure(step=0, parameters=(fact,)), parameter_rows(rows), metrics)


def test_weights_that_hardly_change_are_named(tmp_path: Path) -> None:
    (finding,) = updates_below_ulp(run_with(tmp_path / "run", [0.02] * 5))
    assert (finding.rule, finding.parameter) == ("update-below-ulp", "a.weight")
    assert "only 2.0% of the weights with a gradient change" in finding.why


@pytest.mark.parametrize(
    ("changed", "dtype", "rates"),
    [
        ([0.6] * 5, "float16", None),
        ([0.02] * 5, "float32", None),
        ([0.0, 0.01, 0.02, 0.7, 0.8, 0.9], "bfloat16", [0.0, 1e-5, 2e-5, 1e-3, 1e-3, 1e-3]),
    ],
    ids=["weights that follow", "wide weights", "a warm-up"],
)
def test_healthy_updates_are_silent(
    changed: list[float], dtype: str, rates: list[float] | None, tmp_path: Path
) -> None:
    assert updates_below_ulp(run_with(tmp_path / "run", changed, dtype=dtype, rates=rates)) == []
