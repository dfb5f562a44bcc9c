"""An optimizer that steps on another's gradients is reported if that is the rule, not once."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.loop.leftover_gradients import leftover_gradients
from roundoff.runs import Run
from tests.run_folders import call, calls_by_step, write_run


def run_with(folder: Path, left: list[int]) -> Run:
    steps = [[call("step", optimizer="Adam#2", num_left_over=num, left_by="Adam" if num else None)] for num in left]
    return write_run(folder / "run", calls_by_step(steps))


def test_gradients_of_another_loss_are_reported(tmp_path: Path) -> None:
    (finding,) = leftover_gradients(run_with(tmp_path, [0, 4, 4, 4]))
    assert (finding.rule, finding.step) == ("leftover-gradients", 1)
    assert finding.title == "Adam#2 steps on gradients of the loss of Adam"
    assert "in 3 of 4 observed steps of Adam#2" in finding.why


def test_once_is_silent(tmp_path: Path) -> None:
    assert leftover_gradients(run_with(tmp_path, [0, 0, 0, 4])) == []
