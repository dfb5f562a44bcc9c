"""What a trial came to, read from the run folder that a watch over it left."""

from __future__ import annotations

import shutil
from pathlib import Path

from roundoff.experiments.trial import TrialResult
from roundoff.runs import Run
from roundoff.watch.settings import WatchSettings

RUN_NAME = "run"
"""The run folder, inside the folder of a trial."""


def empty_run_folder(trial_folder: Path) -> Path:
    """Make the folder of a trial and return where its run goes; what an interrupted try left there goes."""
    run_folder = trial_folder / RUN_NAME
    shutil.rmtree(run_folder, ignore_errors=True)
    trial_folder.mkdir(parents=True, exist_ok=True)
    return run_folder


def watch_settings(*, with_rules: bool) -> WatchSettings:
    """Return how a trial is watched: its losses alone, or all that rules want to know."""
    if with_rules:
        return WatchSettings()
    return WatchSettings(full_steps=0, recorded_steps=(), probe_seconds=0.0, most_replays=0)


def rules_found_in(run_folder: Path) -> tuple[str, ...]:
    """Diagnose a run, and return the codes of its findings, the verdict first."""
    # Imported here: most trials are judged by their losses.
    from roundoff.diagnose import diagnose_run

    run = Run.open(run_folder)
    diagnosis = diagnose_run(run)
    run.write_findings(diagnosis.findings)
    return tuple(finding.rule for finding in diagnosis.findings)


def result_of_run(run_folder: Path, *, exit_code: int, with_rules: bool) -> TrialResult:
    """Return what a script came to that was run under a watch."""
    metrics = Run.open(run_folder).metrics()
    eval_losses = [step.eval_loss for step in metrics if step.eval_loss is not None]
    return TrialResult(
        losses=tuple(step.loss for step in metrics if step.loss is not None),
        eval_loss=eval_losses[-1] if eval_losses else None,
        exit_code=exit_code,
        rules=rules_found_in(run_folder) if with_rules else (),
        folder=run_folder.parent,
    )
