"""An evaluation loss that turns up is a note, since when; one that is not finite is an error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roundoff.diagnose.loss.evaluation import rising_eval_losses
from roundoff.runs import Metrics, Run, Severity
from tests.diagnose.findings import only
from tests.run_folders import write_run


def evaluated(folder: Path, eval_losses: Sequence[float], *, falls: bool = True) -> Run:
    metrics = [
        Metrics(
            step=step,
            loss=1 / (1 + step) if falls else 1.0,
            eval_loss=eval_losses[step // 5] if step % 5 == 4 else None,
        )
        for step in range(5 * len(eval_losses))
    ]
    return write_run(folder, metrics)


RISES = (1.0, 0.8, 0.7, 0.8, 0.9, 1.0, 1.1)


def test_says_since_when_it_rises(tmp_path: Path) -> None:
    finding = only(rising_eval_losses, evaluated(tmp_path / "run", RISES))
    assert (finding.rule, finding.severity, finding.step) == ("eval-loss-rising", Severity.NOTE, 14)
    assert "it was 0.7 then and is 1 after 4 more evaluations" in finding.why


def test_one_that_falls_or_wavers_is_silent(tmp_path: Path) -> None:
    assert rising_eval_losses(evaluated(tmp_path / "a", (1.0, 0.8, 0.7, 0.6, 0.65, 0.55, 0.58))) == []
    assert rising_eval_losses(evaluated(tmp_path / "b", RISES, falls=False)) == []


def test_one_that_is_not_finite_while_training_is_fine_is_an_error(tmp_path: Path) -> None:
    finding = only(rising_eval_losses, evaluated(tmp_path / "run", (1.0, float("nan"), 0.7)))
    assert (finding.severity, finding.step, finding.phase) == (Severity.ERROR, 9, "eval")
