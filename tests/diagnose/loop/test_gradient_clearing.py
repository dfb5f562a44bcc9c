"""Gradients that carry over, and those that are cleared before the step, are reported with their first step."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from roundoff.diagnose.loop.gradients import wrongly_cleared_gradients
from roundoff.runs import BatchFacts, Metrics
from tests.run_folders import call, calls_by_step, tensor, write_run

BACKWARD, CLEAR = call("backward"), call("zero_grad")
STEP, CARRIED = call("step", optimizer="SGD"), call("step", optimizer="SGD", num_carried=4)


def test_carried_gradients_are_reported_since_the_step_that_used_them(tmp_path: Path) -> None:
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


def test_clearing_between_backward_and_step_is_reported(tmp_path: Path) -> None:
    metrics = [Metrics(step=step, grad_norm=math.nan) for step in range(4)]
    (finding,) = wrongly_cleared_gradients(
        write_run(tmp_path / "run", calls_by_step([[BACKWARD, CLEAR, STEP]] * 4), metrics)
    )
    assert (finding.rule, finding.step) == ("zero-grad-before-step", 0)


def test_clearing_another_optimizer_in_between_is_silent(tmp_path: Path) -> None:
    metrics = [Metrics(step=step, grad_norm=1.0) for step in range(4)]
    run = write_run(tmp_path / "run", calls_by_step([[BACKWARD, CLEAR, STEP]] * 4), metrics)
    assert wrongly_cleared_gradients(run) == []


def batches(inputs: str, targets: str) -> list[BatchFacts]:
    """Give each step an input and a target, whose hashes are a letter each."""
    return [
        BatchFacts(
            step=step, tensors=(tensor("<model>[0]", (4, 2), hash=x),), targets=(tensor("target", (4,), hash=y),)
        )
        for step, (x, y) in enumerate(zip(inputs, targets, strict=True))
    ]


def test_gradients_cleared_between_microbatches_are_thrown_away(tmp_path: Path) -> None:
    steps = [[CLEAR, BACKWARD], [CLEAR, BACKWARD], [CLEAR, BACKWARD, STEP]] * 3
    run = write_run(tmp_path / "run", calls_by_step(steps), batches("abcdefghi", "stuvwxyzA"))
    (finding,) = wrongly_cleared_gradients(run)
    assert (finding.rule, finding.step) == ("gradients-thrown-away", 0)
    assert finding.title == "the gradients of 2 of 3 microbatches are thrown away"


def test_of_many_microbatches_only_the_first_have_to_be_known(tmp_path: Path) -> None:
    steps = [*[[CLEAR, BACKWARD]] * 15, [CLEAR, BACKWARD, STEP]] * 4
    run = write_run(tmp_path / "run", calls_by_step(steps), batches("abcdefghijklmnopqrst", "ABCDEFGHIJKLMNOPQRST"))
    (finding,) = wrongly_cleared_gradients(run)
    assert finding.title == "the gradients of 15 of 16 microbatches are thrown away"


@pytest.mark.parametrize(("inputs", "targets"), [("aabbccdd", "stuvwxyz"), ("abcdefgh", "ssttuuvv")])
def test_gradients_of_one_batch_that_are_looked_at_first_are_not_thrown_away(
    tmp_path: Path, inputs: str, targets: str
) -> None:
    run = write_run(
        tmp_path / "run", calls_by_step([[CLEAR, BACKWARD], [CLEAR, BACKWARD, STEP]] * 4), batches(inputs, targets)
    )
    assert wrongly_cleared_gradients(run) == []


def test_accumulated_gradients_are_not_thrown_away(tmp_path: Path) -> None:
    steps = calls_by_step([[CLEAR, BACKWARD], [BACKWARD, STEP]] * 4)
    assert wrongly_cleared_gradients(write_run(tmp_path / "run", steps, batches("abcdefgh", "stuvwxyz"))) == []
