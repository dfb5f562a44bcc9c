"""Schedules that run too early or too fast are reported; those that end with the training are silent."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from roundoff.diagnose.loop.step_calls import misplaced_schedules
from roundoff.runs import Finding, Metrics
from tests.run_folders import call, calls_by_step, write_run

STEP = call("step", optimizer="SGD", lr=[0.1])


def scheduled(name: str = "StepLR", *, initial: bool = False) -> tuple[str, dict[str, object]]:
    return call("scheduler", scheduler=name, initial=initial, lr=[0.1])


def found(folder: Path, rate: Callable[[int], float], name: str = "StepLR", *, per_step: bool = True) -> list[Finding]:
    metrics = [Metrics(step=step, lr=rate(step)) for step in range(200)]
    steps = [[STEP, scheduled(name)] if per_step or step % 50 == 49 else [STEP] for step in range(200)]
    return misplaced_schedules(write_run(folder / "run", calls_by_step(steps), metrics))


def test_a_scheduler_before_the_first_step_is_reported(tmp_path: Path) -> None:
    (finding,) = misplaced_schedules(
        write_run(tmp_path / "run", calls_by_step([[scheduled(initial=True), scheduled(), STEP]] * 3))
    )
    assert (finding.rule, finding.step) == ("scheduler-before-step", 0)


def test_a_resumed_training_may_wind_its_schedule_forward(tmp_path: Path) -> None:
    assert (
        misplaced_schedules(write_run(tmp_path / "run", calls_by_step([[call("load"), scheduled(), STEP]] * 3))) == []
    )


def test_a_schedule_of_epochs_that_runs_with_every_batch_is_reported(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, lambda step: 0.1 * 0.1 ** (step // 10))
    assert (finding.rule, finding.step) == ("scheduler-rate", 10)
    assert finding.why == (
        "StepLR was stepped 200 times in 200 recorded steps: the learning rate fell to a tenth within 10 "
        "steps, from 0.1 to 1e-20 at the end, and was below a thousandth of its peak for 160 of 200 steps"
    )


def test_a_cosine_that_comes_down_again_and_again_is_reported(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, lambda step: 0.05 * (1 + math.cos(math.pi * step / 10)), "CosineAnnealingLR")
    assert finding.rule == "scheduler-rate"


@pytest.mark.parametrize(
    ("rate", "name"),
    [
        (lambda step: 0.05 * (1 + math.cos(math.pi * step / 200)), "CosineAnnealingLR"),
        (lambda step: 0.05 * (1 + math.cos(math.pi * (step % 20) / 20)), "CosineAnnealingWarmRestarts"),
        (lambda step: 0.1 * min(step / 20, (200 - step) / 180), "LambdaLR"),
        (lambda step: 0.1 * 0.98**step, "ExponentialLR"),
    ],
    ids=["cosine", "restarts", "linear", "exponential"],
)
def test_schedules_of_steps_are_silent(rate: Callable[[int], float], name: str, tmp_path: Path) -> None:
    assert found(tmp_path, rate, name) == []


def test_a_schedule_that_is_stepped_per_epoch_is_silent(tmp_path: Path) -> None:
    assert found(tmp_path, lambda step: 0.1 * 0.01 ** (step // 50), per_step=False) == []
