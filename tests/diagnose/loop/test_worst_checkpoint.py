"""A checkpoint that is saved at each highest evaluation loss is reported; one at the lowest, or at all, is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.loop.worst_checkpoint import worst_kept
from roundoff.runs import Metrics, Run
from tests.run_folders import call, calls_by_step, write_run


def run_with(folder: Path, losses: list[float], saved: list[int], *, reads: bool = True) -> Run:
    steps = [[call("step", optimizer="SGD"), *([call("save")] if s in saved else [])] for s in range(len(losses))]
    steps[-1] += [call("read")] if reads else []
    return write_run(
        folder / "run", calls_by_step(steps), [Metrics(step=s, eval_loss=loss) for s, loss in enumerate(losses)]
    )


def test_saves_at_the_highest_loss_are_reported(tmp_path: Path) -> None:
    (finding,) = worst_kept(run_with(tmp_path, [0.5, 0.6, 0.4, 0.7, 0.3], [0, 1, 3]))
    assert (finding.rule, finding.step) == ("worst-checkpoint-kept", 3)
    assert "saved at a loss of 0.7, while the lowest was 0.3" in finding.why


def test_the_first_alone_is_reported_if_it_is_read_again(tmp_path: Path) -> None:
    assert len(worst_kept(run_with(tmp_path, [0.9, 0.8, 0.7, 0.6], [0]))) == 1


@pytest.mark.parametrize(
    ("losses", "saved", "reads"),
    [
        ([0.9, 0.8, 0.7, 0.6], [0], False),
        ([0.9, 0.8, 0.7, 0.6], [0, 1, 2, 3], True),
        ([0.9, 0.8, 0.7, 0.8], [0, 1, 2], True),
        ([0.9, 0.8, 0.7, 0.6], [3], True),
        ([0.5, 0.6, 0.7, 0.8], [0, 1, 2, 3], True),
    ],
    ids=["first weights", "all", "the best", "the last", "never better"],
)
def test_other_saves_are_silent(tmp_path: Path, losses: list[float], saved: list[int], reads: bool) -> None:
    assert worst_kept(run_with(tmp_path, losses, saved, reads=reads)) == []
