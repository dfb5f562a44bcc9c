"""Clipping after the step is reported where it would have clipped, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.loop.late_clipping import late_clipping, low_clipping
from roundoff.runs import Metrics, OptimizerFacts, Run, Structure
from tests.run_folders import call, calls_by_step, parameter_rows, write_run

ZERO, BACKWARD, STEP = call("zero_grad"), call("backward"), call("step", optimizer="SGD")
CLIP = call("clip", max_norm=1.0, total_norm=5.0)


@pytest.mark.parametrize(
    ("order", "is_found"),
    [
        ([ZERO, BACKWARD, STEP, CLIP], True),
        ([BACKWARD, STEP, CLIP, ZERO], True),
        ([ZERO, BACKWARD, CLIP, STEP], False),
        ([ZERO, BACKWARD, CLIP, STEP, CLIP], False),
        ([STEP, ZERO, BACKWARD, CLIP], False),
        ([BACKWARD, STEP, CLIP, call("step", optimizer="SGD#2"), ZERO], False),
        ([BACKWARD, STEP, call("clip", max_norm=float("inf"), total_norm=5.0)], False),
        ([BACKWARD, STEP, call("clip", max_norm=9.0, total_norm=5.0)], False),
    ],
)
def test_only_clipping_that_no_step_uses_is_reported(tmp_path: Path, order: list, is_found: bool) -> None:
    found = late_clipping(write_run(tmp_path / "run", calls_by_step([order] * 3)))
    assert [finding.rule for finding in found] == ["clip-after-step"] * is_found


EARLY = call("clip", max_norm=1.0, total_norm=0.0)


@pytest.mark.parametrize(
    ("order", "is_found"),
    [
        ([ZERO, EARLY, BACKWARD, STEP], True),
        ([EARLY, BACKWARD, STEP, ZERO], True),
        ([CLIP, BACKWARD, STEP], False),
        ([ZERO, BACKWARD, EARLY, STEP], False),
        ([ZERO, BACKWARD, EARLY, BACKWARD, STEP], False),
    ],
    ids=["after zero_grad", "zero_grad last", "gradients of the step before", "all gradients 0", "two backwards"],
)
def test_clipping_before_backward_is_reported(tmp_path: Path, order: list, is_found: bool) -> None:
    found = late_clipping(write_run(tmp_path / "run", calls_by_step([order] * 3)))
    assert [finding.rule for finding in found] == ["clip-before-backward"] * is_found


def test_the_norms_are_named(tmp_path: Path) -> None:
    (found,) = late_clipping(write_run(tmp_path / "run", calls_by_step([[ZERO, BACKWARD, STEP, CLIP]] * 3)))
    assert (
        "in 3 steps the gradients were clipped only after the optimizer had stepped (in step 0 from 5 to 1)"
        in found.why
    )


def clipped(folder: Path, norm: float, limit: float, *, group: dict[str, Any], ratio: float = 1e-6) -> Run:
    steps = [[call("clip", total_norm=norm, max_norm=limit), call("step", optimizer="SGD")]] * 20
    rows = [{"step": s, "parameter": "w", "l2": 2.0, "grad_l2": limit, "update_l2": 2 * ratio} for s in range(20)]
    structure = Structure(step=0, optimizers=(OptimizerFacts(name="SGD", groups=(group,)),))
    metrics = [Metrics(step=s, loss=1.0) for s in range(20)]
    return write_run(folder / "run", calls_by_step(steps), structure, parameter_rows(rows), metrics)


def test_a_limit_far_below_the_norm_is_reported(tmp_path: Path) -> None:
    (finding,) = low_clipping(clipped(tmp_path, 5.0, 1e-3, group={"lr": 0.1}))
    assert finding.rule == "clip-too-low"
    assert finding.fix == "raise max_norm from 0.001 to about 5, or leave the clipping out"


@pytest.mark.parametrize(
    ("norm", "limit", "group", "ratio"),
    [(5.0, 1.0, {"lr": 0.1}, 1e-6), (5.0, 1e-3, {"betas": [0.9, 0.99]}, 1e-6), (5.0, 1e-3, {"lr": 100.0}, 0.1)],
    ids=["ordinary", "Adam divides by it", "the weights move"],
)
def test_other_limits_are_silent(tmp_path: Path, norm: float, limit: float, group: Any, ratio: float) -> None:
    assert low_clipping(clipped(tmp_path, norm, limit, group=group, ratio=ratio)) == []
