"""Rows of the table of parameters come back as one history for each parameter, in the order of the steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from roundoff.diagnose.parameter_histories import first_histories, parameter_histories
from tests.run_folders import losses, parameter_rows, write_run


def test_rows_become_one_history_a_parameter_in_the_order_of_steps(tmp_path: Path) -> None:
    rows = [
        {"step": step, "parameter": name, "l2": step + weight, "grad_l2": grad}
        for step in (2, 0, 40)
        for name, weight, grad in (("head", 10.0, 1.0), ("body", 20.0, None))
    ]
    histories = parameter_histories(write_run(tmp_path / "run", parameter_rows(rows), losses(1.0)), 0)
    assert list(histories) == ["head", "body"]
    assert histories["head"].steps.tolist() == [0, 2, 40]
    assert histories["head"].norm.tolist() == [10, 12, 50]
    assert histories["body"].norm.tolist() == [20, 22, 60]
    assert np.isnan(histories["body"].gradient).all()
    assert histories["body"].is_always_missing
    assert not histories["head"].is_always_missing


def test_names_and_steps_can_be_chosen(tmp_path: Path) -> None:
    rows = [{"step": step, "parameter": name} for step in (0, 40) for name in ("head", "body")]
    run = write_run(tmp_path / "run", parameter_rows(rows), losses(1.0))
    assert list(parameter_histories(run, 0, names=["body"])) == ["body"]
    assert {name: history.steps.tolist() for name, history in first_histories(run).items()} == {
        "head": [0], "body": [0],
    }  # fmt: skip


def test_a_run_without_rows_has_no_histories(tmp_path: Path) -> None:
    assert parameter_histories(write_run(tmp_path / "run", losses(1.0)), 0) == {}
