"""Gradients that carry over, and such as are cleared before the step, are told with their first step."""

from __future__ import annotations

import math
from pathlib import Path

from roundoff.diagnose.loop.gradient_clearing import wrongly_cleared_gradients
from roundoff.runs import Metrics
from tests.run_folders import call, calls_by_step, write_run

BACKWARD, CLEAR = call("backward"), call("zero_grad")
STEP, CARRIED = call("step", optimizer="SGD"), call("step", optimizer="SGD", num_carried=4)


def test_carried_gradients_are_told_since_the_step_that_used_them(tmp_path: Path) -> None:
    (finding,) = wrongly_cleared_gradients(
        write_run(tmp_path / "run", calls_by_step([[BACKWARD, STEP], *[[BACKWARD, CARRIED]] * 5]))
    )
    assert (finding.rule, finding.step) == ("missing-zero-grad", 0)
    assert finding.why == (
        "when backward ran in step 1, 4 parameters of SGD still had the gradient that step 0 had used, and the new one "
        "was added to it; this happened in 5 of 5 observed steps"
    )


def test_gradients_that_carry_over_once_are_silent(tmp_path: Path) -> None:
    steps = [[BACKWARD, STEP], [BACKWARD, CARRIED], *[[BACKWARD, STEP]] * 5]
    assert wrongly_cleared_gradients(write_run(tmp_path / "run", calls_by_step(steps))) == []


def test_clearing_between_backward_and_step_is_told(tmp_path: Path) -> None:
    metrics = [Metrics(step=step, grad_norm=math.nan) for step in range(4)]
    (finding,) = wrongly_cleared_gradients(
        write_run(tmp_path / "run", calls_by_step([[BACKWARD, CLEAR, STEP]] * 4), metrics)
    )
    assert (finding.rule, finding.step) == ("zero-grad-before-step", 0)


def test_clearing_another_optimizer_in_between_is_silent(tmp_path: Path) -> None:
    metrics = [Metrics(step=step, grad_norm=1.0) for step in range(4)]
    run = write_run(tmp_path / "run", calls_by_step([[BACKWARD, CLEAR, STEP]] * 4), metrics)
    assert wrongly_cleared_gradients(run) == []
