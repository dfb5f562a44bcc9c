"""Settings that defeat the optimizer are reported by what they do; unusual ones that do no harm are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.loop.optimizer_settings import unfit_settings
from roundoff.runs import Metrics, OptimizerFacts, Run, Structure
from tests.run_folders import parameter_rows, write_run

ADAM: dict[str, Any] = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}


def run_with(
    folder: Path, group: dict[str, Any], *, grad: float = 0.1, factor: float = 1.0, update: float = 0.01
) -> Run:
    rows = [
        {"step": step, "parameter": "w", "l2": 2 * factor**step, "grad_l2": grad, "update_l2": update}
        for step in range(20)
    ]
    structure = Structure(step=0, optimizers=(OptimizerFacts(name="Adam", groups=(group,)),))
    return write_run(folder / "run", structure, parameter_rows(rows), [Metrics(step=s, loss=1.0) for s in range(20)])


@pytest.mark.parametrize(
    ("group", "numbers", "rule"),
    [
        ({**ADAM, "betas": [0.999, 0.9]}, {}, "settings-swapped"),
        ({"lr": 0.9, "momentum": 0.01}, {}, "settings-swapped"),
        ({**ADAM, "lr": 0.01, "weight_decay": 10.0}, {"factor": 0.9}, "weight-decay-too-strong"),
        ({**ADAM, "eps": 1e-3}, {"grad": 1e-6, "update": 1e-7}, "eps-above-gradients"),
        ({**ADAM, "weight_decay": 0.1, "decoupled_weight_decay": False}, {}, "decay-in-adam"),
    ],
)
def test_settings_that_defeat_the_optimizer_are_reported(
    tmp_path: Path, group: dict[str, Any], numbers: dict[str, float], rule: str
) -> None:
    assert [finding.rule for finding in unfit_settings(run_with(tmp_path, group, **numbers))] == [rule]


@pytest.mark.parametrize(
    ("group", "numbers"),
    [
        (ADAM, {}),
        ({**ADAM, "betas": [0.9, 0.9]}, {}),
        ({"lr": 0.5, "momentum": 0.0}, {}),
        ({**ADAM, "lr": 0.01, "weight_decay": 10.0}, {"factor": 0.99}),
        ({**ADAM, "weight_decay": 0.1, "decoupled_weight_decay": True}, {}),
        ({**ADAM, "weight_decay": 1e-4, "decoupled_weight_decay": False}, {"grad": 1e-6}),
        ({**ADAM, "weight_decay": 0.1, "decoupled_weight_decay": False}, {"grad": 10.0}),
        ({**ADAM, "eps": 1e-3}, {"grad": 1.0}),
    ],
)
def test_other_settings_are_silent(tmp_path: Path, group: dict[str, Any], numbers: dict[str, float]) -> None:
    assert unfit_settings(run_with(tmp_path, group, **numbers)) == []
