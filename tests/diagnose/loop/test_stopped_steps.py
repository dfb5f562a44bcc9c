"""Optimizers that step no longer; and pauses, accumulation and gradients after a training, which are fine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.diagnose.loop.stopped_steps import stopped_optimizers
from roundoff.runs import Metrics, Run
from tests.diagnose.findings import only
from tests.run_folders import call, calls_by_step, write_run


def trained(folder: Path, *, num_last: int, training: bool = True, per_step: int = 1) -> Run:
    """Return a run of 20 steps, followed by backwards without a step."""
    forward, backward = call("forward", site="<model>", training=True), call("backward")
    step: Any = [*[forward, backward] * per_step, call("step", optimizer="Adam")]
    last: Any = [call("forward", site="<model>", training=training), backward] * num_last
    metrics = [Metrics(step=each, seconds=0.1, loss=1.0, optimizer="Adam" if each < 20 else None) for each in range(21)]
    return write_run(folder, calls_by_step([*[step] * 20, last]), metrics)


def test_backwards_without_a_step_are_reported_since_their_first(tmp_path: Path) -> None:
    finding = only(stopped_optimizers, trained(tmp_path / "run", num_last=50))
    assert (finding.rule, finding.step) == ("stepping-stopped", 20)
    assert finding.title == "Adam does not step any more"


def test_accumulation_few_backwards_and_eval_mode_are_fine(tmp_path: Path) -> None:
    assert stopped_optimizers(trained(tmp_path / "few", num_last=9)) == []
    assert stopped_optimizers(trained(tmp_path / "accumulates", num_last=20, per_step=8)) == []
    assert stopped_optimizers(trained(tmp_path / "looks", num_last=50, training=False)) == []
