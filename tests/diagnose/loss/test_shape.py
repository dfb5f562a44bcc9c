"""A loss that exploded, rose or stayed is reported, under its cause if that is known; healthy ones are silent."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from roundoff.diagnose import diagnose_run
from roundoff.diagnose.loss.course import shapes_of_the_loss
from roundoff.runs import Finding, Metrics, Severity
from tests.run_folders import call, calls_by_step, write_run


def found(folder: Path, loss: Callable[[int], float], num_steps: int = 300) -> list[Finding]:
    noise = random.Random(0)
    metrics = [Metrics(step=step, loss=loss(step) * noise.uniform(0.9, 1.1)) for step in range(num_steps)]
    return shapes_of_the_loss(write_run(folder / "run", metrics))


def test_only_explosions_are_wrong_in_reinforcement_learning(tmp_path: Path) -> None:
    for name, loss, rules in (
        ("rising", lambda step: 1 + step / 100, []),
        ("exploded", lambda step: 1.04**step, ["loss-exploded"]),
    ):
        metrics = [Metrics(step=step, loss=loss(step)) for step in range(300)]
        run = write_run(tmp_path / name, metrics, packages={"gymnasium": "1.0"})
        assert [finding.rule for finding in shapes_of_the_loss(run)] == rules


@pytest.mark.parametrize(
    ("loss", "rule", "severity"),
    [
        (lambda step: 1.04**step, "loss-exploded", Severity.ERROR),
        (lambda step: 1 + step / 100, "loss-rising", Severity.WARNING),
        (lambda step: 1.0, "loss-flat", Severity.WARNING),
    ],
    ids=["exploded", "rising", "flat"],
)
def test_the_course_of_a_bad_loss_is_reported(
    loss: Callable[[int], float], rule: str, severity: Severity, tmp_path: Path
) -> None:
    (finding,) = found(tmp_path, loss)
    assert (finding.rule, finding.severity) == (rule, severity)


@pytest.mark.parametrize(
    ("loss", "num_steps"),
    [
        (lambda step: 0.1 + 0.97**step, 300),
        (lambda step: 0.5 + 2 * 0.3**step, 300),
        (lambda step: 1e-4, 300),
        (lambda step: -1 - step, 300),
        (lambda step: 1.0, 100),
    ],
    ids=["falls", "falls at once", "done", "below 0", "short"],
)
def test_other_losses_are_silent(loss: Callable[[int], float], num_steps: int, tmp_path: Path) -> None:
    assert found(tmp_path, loss, num_steps) == []


def test_losses_of_two_optimizers_are_not_judged(tmp_path: Path) -> None:
    metrics = [Metrics(step=step, loss=1.04**step, optimizer="ab"[step % 2]) for step in range(200)]
    assert shapes_of_the_loss(write_run(tmp_path / "run", metrics)) == []


def test_a_flat_loss_with_a_known_cause_is_related_to_it(tmp_path: Path) -> None:
    metrics = [Metrics(step=step, loss=1.0 + 0.1 * (step % 3), lr=0.0) for step in range(300)]
    steps = [[call("backward"), call("step", optimizer="SGD", lr=[0.0])]] * 100
    (finding,) = diagnose_run(write_run(tmp_path / "run", calls_by_step(steps), metrics)).findings
    assert (finding.rule, [related.rule for related in finding.related]) == ("lr-zero", ["loss-flat"])
