"""Scales that fall for ever are named; skips on the way to a scale that fits are not."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.nonfinite.values import collapsed_loss_scales
from roundoff.runs import Metrics, Run
from tests.run_folders import write_run


def run_with(folder: Path, *, first_scale: float, num_skipped: int, loss: float = 1.0) -> Run:
    skipped = [
        Metrics(step=step, loss=loss, loss_scale=first_scale / 2**step, skipped=True) for step in range(num_skipped)
    ]
    return write_run(folder, [*skipped, Metrics(step=num_skipped, loss=1.0, loss_scale=1.0, skipped=False)])


def test_skips_down_to_a_scale_below_one_are_named(tmp_path: Path) -> None:
    (finding,) = collapsed_loss_scales(run_with(tmp_path / "run", first_scale=1024.0, num_skipped=13))
    assert (finding.rule, finding.step) == ("loss-scale-collapsed", 0)
    assert "13 steps in a row were skipped since step 0, while the scale fell from 1e3 to 0.25" in finding.why


def test_long_skips_without_a_good_loss_are_named_whatever_the_scale(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", first_scale=2.0**40, num_skipped=12, loss=float("nan"))
    assert [finding.rule for finding in collapsed_loss_scales(run)] == ["loss-scale-collapsed"]


def test_a_scale_that_began_too_high_is_fine(tmp_path: Path) -> None:
    assert collapsed_loss_scales(run_with(tmp_path / "run", first_scale=2.0**40, num_skipped=25)) == []


def test_a_few_skips_because_of_bad_batches_are_fine(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", first_scale=2.0**16, num_skipped=4, loss=float("nan"))
    assert collapsed_loss_scales(run) == []
