"""Trains a sweep row by row into its folder, so that an interrupted one can resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from roundoff.errors import SweepError
from roundoff.experiments.engine.scheduler import Backend, run_tasks
from roundoff.experiments.engine.task import Task, TaskOutcome
from roundoff.experiments.sweep.definition import PlannedTraining, Sweep
from roundoff.experiments.sweep.folder import SweepFolder, sweep_request
from roundoff.experiments.sweep.results import write_results
from roundoff.experiments.sweep.sweep_rows import SweepRow, append_row, read_rows
from roundoff.words import plural

OnRow = Callable[[SweepRow, bool], None]
"""Called with each row, and whether it was trained now (not read from the folder)."""


def run_sweep(
    sweep: Sweep,
    *,
    folder: Path,
    jobs: int = 1,
    on: Backend = "pool",
    resume: bool = False,
    on_row: OnRow | None = None,
) -> list[SweepRow]:
    """Run all trainings of a sweep, `jobs` at a time, here or on a cluster, and return its rows in order.

    Each row is written to `folder`/rows.jsonl as soon as it is finished; however this ends, the rows so far are also
    written as a CSV file and as a page. With `resume`, finished rows with unchanged settings are not trained again;
    failed ones are. A training that crashes is a row that says so.

    Raises:
        SweepError: `folder` already holds rows and `resume` is false, or it cannot be written to.
        ClusterError: Ray is not installed, or its cluster cannot be reached.
    """
    files = SweepFolder(path=folder)
    kept = _read_finished_rows(sweep, files, resume=resume)
    rows: dict[str, SweepRow] = {}

    def done(row: SweepRow, *, is_new: bool) -> None:
        rows[row.key] = row
        if is_new:
            append_row(files.rows, row)
        if on_row is not None:
            on_row(row, is_new)

    tasks, planned = [], {}
    for number, training in enumerate(sweep.trainings):
        if training.key in kept:
            done(_relabel(kept[training.key], training), is_new=False)
        else:
            task = _row_task(training, number, files)
            tasks.append(task)
            planned[task.name] = training

    def finished(outcome: TaskOutcome) -> None:
        done(_make_row(planned[outcome.task.name], outcome), is_new=True)

    try:
        run_tasks(tasks, jobs=jobs, on=on, on_result=finished)
    finally:
        write_results(files)
    return [rows[training.key] for training in sweep.trainings]


def _read_finished_rows(sweep: Sweep, files: SweepFolder, *, resume: bool) -> Mapping[str, SweepRow]:
    before = read_rows(files.rows)
    if before and not resume:
        held = plural(len(before), "row")
        num_done = sum(training.key in before for training in sweep.trainings)
        raise SweepError.explain(
            f"'{files.path}' already holds a sweep.",
            why=f"it has {held}, {num_done} of the {len(sweep.trainings)} requested.",
            fix="--resume trains what is missing; --name NEW starts in another folder.",
        )
    files.write_request(sweep_request(sweep))
    return {key: row for key, row in before.items() if row.failure is None}


def _relabel(row: SweepRow, training: PlannedTraining) -> SweepRow:
    """Return a finished row with the present labels: renaming a label changes no number."""
    return replace(row, labels=training.labels)


def _row_task(training: PlannedTraining, number: int, files: SweepFolder) -> Task:
    # Imported here: reading rows needs no torch.
    from roundoff.experiments.sweep.row_training import RowTask, train_row

    recipe_file = None
    if training.recipe_toml is not None:
        recipe_file = files.recipe(training.key)
        recipe_file.parent.mkdir(parents=True, exist_ok=True)
        recipe_file.write_text(training.recipe_toml, encoding="utf-8")
    return Task(
        name=training.key,
        call=train_row,
        argument=RowTask(config=training.config, recipe_file=recipe_file, metrics_file=files.metrics(training.key)),
        log=files.log(number),
    )


def _make_row(training: PlannedTraining, outcome: TaskOutcome) -> SweepRow:
    common: dict[str, Any] = {
        "key": training.key,
        "labels": training.labels,
        "settings": training.config.to_object(),
        "recipe_toml": training.recipe_toml,
    }
    if outcome.failure is not None:
        log = outcome.task.log
        where = f" ({log})" if log is not None and log.exists() else ""
        return SweepRow(
            **common, failure=outcome.failure, seconds=outcome.seconds, note=f"failed: {outcome.failure}{where}"
        )
    return SweepRow(**common, **outcome.value)
