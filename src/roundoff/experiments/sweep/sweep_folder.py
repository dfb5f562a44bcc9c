"""The folder of a sweep: its rows are trained into it and read from it, and written as a CSV file and a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from roundoff.errors import RoundoffError, SweepError
from roundoff.experiments.engine.process_pool import Task, TaskOutcome
from roundoff.experiments.engine.scheduler import Backend, run_tasks
from roundoff.experiments.experiment_folder import ExperimentFolder
from roundoff.experiments.sweep.axes import SWEEP_SETTINGS, setting_text
from roundoff.experiments.sweep.definition import PlannedTraining, Sweep
from roundoff.experiments.sweep.seed_groups import (
    SEED_AXIS,
    group_by_labels,
    has_several_seeds,
    seed_columns,
    seed_row,
    spreads_by_axes,
)
from roundoff.experiments.sweep.sweep_rows import (
    RowColumn,
    SweepRow,
    append_row,
    is_nonfinite,
    read_rows,
    rows_csv,
    shown_columns,
    summarize_rows,
)
from roundoff.files import write_atomically
from roundoff.report.parts import Cell, Mark, TableColumn
from roundoff.report.sweep_page import OverSeeds, SweepPage, SweepPageRow, sweep_page
from roundoff.runs import Metrics
from roundoff.runs.files.lines import read_lines
from roundoff.train import TrainConfig
from roundoff.words import plural


class SweepFolder(ExperimentFolder):
    """The folder of a sweep. Its request may change when it resumes: rows are found again by their keys."""

    kind: ClassVar[str] = "sweep"
    noun: ClassVar[str] = "sweep"
    error: ClassVar[type[RoundoffError]] = SweepError

    @property
    def rows(self) -> Path:
        """The rows, one JSON object per line; later rows replace earlier ones with the same key."""
        return self.path / "rows.jsonl"

    @property
    def csv(self) -> Path:
        """The rows as a table for other programs."""
        return self.path / "rows.csv"

    @property
    def page(self) -> Path:
        """The rows as a page."""
        return self.path / "report.html"

    def metrics(self, key: str) -> Path:
        """The metrics of every step of a training, as in a run folder."""
        return self.path / "metrics" / f"{key}.jsonl"

    def recipe(self, key: str) -> Path:
        """The recipe of a training, if it has no name."""
        return self.path / "recipes" / f"{key}.toml"

    def log(self, number: int) -> Path:
        """The output of a training, if there was any."""
        return self.path / "logs" / f"{number}.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """One requested row, and its result if it is finished."""

    key: str
    labels: Mapping[str, str]
    row: SweepRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSweep:
    """A sweep as stored in its folder, finished or not."""

    name: str
    description: str
    axes: tuple[str, ...]
    planned: tuple[StoredRow, ...]
    """The requested rows, in order."""

    @property
    def rows(self) -> list[SweepRow]:
        """The finished rows."""
        return [each.row for each in self.planned if each.row is not None]


def sweep_request(sweep: Sweep) -> dict[str, Any]:
    """Return what a sweep requests, as JSON values: name, description, axes, and key and labels of every row."""
    return {
        "name": sweep.name,
        "description": sweep.description,
        "axes": list(sweep.axes),
        "rows": [{"key": training.key, "labels": dict(training.labels)} for training in sweep.trainings],
    }


def read_sweep_folder(path: Path) -> StoredSweep:
    """Return the sweep in a folder, with its rows so far.

    Raises:
        SweepError: there is none.
        RunFolderError: a file in it is damaged.
    """
    folder = SweepFolder(path=path)
    request = folder.read_request()
    rows = read_rows(folder.rows)
    try:
        return StoredSweep(
            name=str(request["name"]),
            description=str(request["description"]),
            axes=tuple(request["axes"]),
            planned=tuple(_stored_row(rows.get(each["key"]), **each) for each in request["rows"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SweepError.explain(
            f"'{folder.request}' cannot be read.", why=f"it does not hold the request of a sweep ({error})."
        ) from error


def _stored_row(row: SweepRow | None, *, key: str, labels: Mapping[str, object]) -> StoredRow:
    """Return a row with the labels of the request: renaming a label changes no number."""
    if not key.isalnum():
        raise ValueError(f"{key!r} is not a key")  # checked because it becomes the name of a file
    # A label such as "inf" comes back as a number.
    texts = {axis: str(label) for axis, label in labels.items()}
    return StoredRow(key=key, labels=texts, row=None if row is None else replace(row, labels=texts))


def read_losses(folder: SweepFolder, key: str) -> list[float]:
    """Return the loss of every step of a training; empty if it has not started."""
    metrics = read_lines(folder.metrics(key), Metrics.from_object)
    return [step.loss for step in metrics if step.loss is not None]


def write_results(folder: SweepFolder) -> StoredSweep:
    """Write the rows so far as CSV and as a page into their folder, and return them; see `read_sweep_folder`."""
    sweep = read_sweep_folder(folder.path)
    try:
        write_atomically(folder.csv, rows_csv(sweep.rows, sweep.axes).encode())
        write_atomically(folder.page, sweep_page(make_sweep_page(sweep, folder)).encode())
    except OSError as error:
        raise SweepError.explain(f"'{error.filename}' cannot be written.", why=f"{error.strerror}.") from error
    return sweep


def make_sweep_page(sweep: StoredSweep, folder: SweepFolder) -> SweepPage:
    """Return everything the page of a sweep shows."""
    rows = sweep.rows
    common = _common_settings(rows)
    defaults = TrainConfig().to_object()
    measures = shown_columns(rows)
    varying = [name for name in SWEEP_SETTINGS if name not in common]
    return SweepPage(
        title=f"Sweep {sweep.name}",
        description=sweep.description,
        summary=summarize_rows(rows, num_planned=len(sweep.planned)),
        columns=[
            *(TableColumn(name=axis) for axis in sweep.axes),
            *(TableColumn(name=measure.name, is_number=True) for measure in measures),
        ],
        rows=[
            _page_row(each, axes=sweep.axes, measures=measures, varying=varying, losses=read_losses(folder, each.key))
            for each in sweep.planned
        ],
        common=_setting_texts({name: value for name, value in common.items() if value != defaults[name]}),
        defaults=_setting_texts({name: value for name, value in common.items() if value == defaults[name]}),
        over_seeds=_over_seeds(rows, sweep.axes) if has_several_seeds(rows) else None,
    )


def _over_seeds(rows: Sequence[SweepRow], axes: Sequence[str]) -> OverSeeds:
    groups = group_by_labels(rows)
    columns = seed_columns(groups, axes)
    return OverSeeds(
        columns=columns,
        rows=[seed_row(group, columns) for group in groups],
        spreads=spreads_by_axes(rows, axes),
        axis=next((axis for axis in reversed(axes) if axis != SEED_AXIS), ""),
    )


def _page_row(
    kept: StoredRow,
    *,
    axes: Sequence[str],
    measures: Sequence[RowColumn],
    varying: Sequence[str],
    losses: Sequence[float],
) -> SweepPageRow:
    row = kept.row
    outcome, mark = _row_status(row)
    labels = [Cell(shown=kept.labels.get(axis, "-"), value=kept.labels.get(axis)) for axis in axes]
    if row is None:
        empty = [Cell(shown="") for _ in measures]
        return SweepPageRow(cells=[*labels, *empty], outcome=outcome, mark=mark, losses=losses)
    return SweepPageRow(
        cells=[*labels, *(Cell(shown=each.text(row), value=each.value(row)) for each in measures)],
        outcome=outcome,
        mark=mark,
        losses=losses,
        settings=_setting_texts({name: row.settings[name] for name in varying if name in row.settings}),
        recipe=row.recipe_toml,
        note=row.note,
    )


def _row_status(row: SweepRow | None) -> tuple[str, Mark | None]:
    if row is None:
        return "not finished yet", "waiting"
    if row.failure is not None:
        return "failed", "failed"
    return ("went non-finite", "bad") if is_nonfinite(row) else ("trained", None)


def _common_settings(rows: Sequence[SweepRow]) -> dict[str, object]:
    """Return the settings that are equal in every row."""
    first = rows[0].settings if rows else {}
    return {
        name: first[name]
        for name in SWEEP_SETTINGS
        if name in first and all(row.settings.get(name) == first[name] for row in rows)
    }


def _setting_texts(settings: Mapping[str, object]) -> dict[str, str]:
    return {name: setting_text(name, value) for name, value in settings.items()}


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

    def add_row(row: SweepRow, *, is_new: bool) -> None:
        rows[row.key] = row
        if is_new:
            append_row(files.rows, row)
        if on_row is not None:
            on_row(row, is_new)

    tasks, planned = [], {}
    for number, training in enumerate(sweep.trainings):
        if training.key in kept:
            add_row(replace(kept[training.key], labels=training.labels), is_new=False)  # labels may be new
        else:
            task = _row_task(training, number, files)
            tasks.append(task)
            planned[task.name] = training

    def on_result(outcome: TaskOutcome) -> None:
        add_row(_make_row(planned[outcome.task.name], outcome), is_new=True)

    try:
        run_tasks(tasks, jobs=jobs, on=on, on_result=on_result)
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


def _row_task(training: PlannedTraining, number: int, files: SweepFolder) -> Task:
    # Imported here: reading rows needs no torch.
    from roundoff.experiments.sweep.row_training import train_row

    config = training.config
    if training.recipe_toml is not None:
        recipe_file = files.recipe(training.key)
        recipe_file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(recipe_file, training.recipe_toml.encode(), is_private=False)
        config = replace(config, recipe=str(recipe_file))
    train = partial(train_row, metrics_file=files.metrics(training.key))
    return Task(name=training.key, call=train, argument=config, log=files.log(number))


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
