"""The results of a sweep as a CSV file and a page, made from its folder alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roundoff.errors import SweepError
from roundoff.experiments.sweep.axes import SWEEP_SETTINGS, setting_text
from roundoff.experiments.sweep.folder import StoredRow, StoredSweep, SweepFolder, read_losses, read_sweep_folder
from roundoff.experiments.sweep.sweep_rows import (
    RowColumn,
    SweepRow,
    is_nonfinite,
    rows_csv,
    shown_columns,
    summarize_rows,
)
from roundoff.report.html_table import Cell, Column, Mark
from roundoff.report.sweep_page import SweepPage, SweepPageRow, sweep_page
from roundoff.runs.files.atomic import write_atomically
from roundoff.train import TrainConfig


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
            *(Column(name=axis) for axis in sweep.axes),
            *(Column(name=measure.name, is_number=True) for measure in measures),
        ],
        rows=[
            _page_row(each, axes=sweep.axes, measures=measures, varying=varying, losses=read_losses(folder, each.key))
            for each in sweep.planned
        ],
        common=_setting_texts({name: value for name, value in common.items() if value != defaults[name]}),
        defaults=_setting_texts({name: value for name, value in common.items() if value == defaults[name]}),
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
