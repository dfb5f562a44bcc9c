"""Schedules much longer than the training, and ones that begin anew, are reported; those that fit are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.loop.schedule_length import long_schedules, lost_schedules
from roundoff.runs import Metrics, Run
from tests.run_folders import call, calls_by_step, write_run

STEP = call("step", optimizer="SGD", lr=[0.1])


def scheduled(position: int, **plan: int) -> Any:
    planned = plan if position == 1 else {}
    return call("scheduler", scheduler="LambdaLR", initial=False, lr=[0.1], position=position, **planned)


def run_with(folder: Path, rates: list[float], *, every: int, **plan: int) -> Run:
    num = len(rates)
    steps = [[STEP, scheduled((s + 1) // every, **plan)] if (s + 1) % every == 0 else [STEP] for s in range(num)]
    metrics = [Metrics(step=step, lr=rate) for step, rate in enumerate(rates)]
    return write_run(folder / "run", calls_by_step(steps), metrics)


def test_a_warm_up_that_is_not_over_is_reported(tmp_path: Path) -> None:
    rates = [0.1 * step / 1000 for step in range(100)]
    (finding,) = long_schedules(run_with(tmp_path, rates, every=1, peak=1000))
    assert (finding.rule, finding.title) == ("schedule-too-long", "the warm-up is longer than the training")
    assert "stepped 100 times, with every step of the optimizer, in 100 steps" in finding.why


def test_a_decay_in_batches_that_is_stepped_per_epoch_is_reported(tmp_path: Path) -> None:
    (finding,) = long_schedules(run_with(tmp_path, [0.1] * 100, every=20, length=100))
    assert "the length of LambdaLR is 100 steps, as many as the optimizer takes" in finding.why
    assert finding.fix.startswith("call scheduler.step() after every optimizer.step()")


@pytest.mark.parametrize(
    ("rates", "every", "plan"),
    [
        ([0.1 * min(1, step / 10) for step in range(100)], 1, {"peak": 10}),
        ([0.1 * (1 - step / 100) for step in range(100)], 1, {"length": 100}),
        ([0.1] * 100, 20, {"length": 5}),
        ([0.1] * 100, 20, {"length": 30}),
        ([0.1 * step / 1000 for step in range(20)], 1, {"peak": 1000}),
    ],
    ids=["over", "as long as the training", "in epochs", "cut short", "a trial"],
)
def test_other_schedules_are_silent(tmp_path: Path, rates: list[float], every: int, plan: dict[str, int]) -> None:
    assert long_schedules(run_with(tmp_path, rates, every=every, **plan)) == []


def resumed(folder: Path, position: int, saved: int) -> Run:
    read = call("read", schedule_positions=[saved])
    return write_run(folder / "run", calls_by_step([[read, STEP, scheduled(position)]]))


def test_a_schedule_that_begins_anew_is_reported(tmp_path: Path) -> None:
    (finding,) = lost_schedules(resumed(tmp_path, 1, saved=100))
    assert finding.rule == "schedule-state-lost"
    assert "a schedule that had taken 100 steps" in finding.why


@pytest.mark.parametrize(("position", "saved"), [(101, 100), (1, 0)])
def test_a_schedule_that_goes_on_is_silent(tmp_path: Path, position: int, saved: int) -> None:
    assert lost_schedules(resumed(tmp_path, position, saved)) == []
