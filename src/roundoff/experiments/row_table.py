"""A sweep's rows as cells: for the tables that people read, and for the CSV file that keeps everything."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roundoff.experiments.row import Row

LEFT = ("note",)
"""Columns of words; those of the axes are, too."""

_CSV_COLUMNS = (
    *("top1", "eval_loss", "steps", "first_nonfinite_step", "ended_nonfinite", "skipped"),
    *("saved_activation_bytes", "seconds", "failure", "note"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A column of numbers: how a row's number is written, and what it is."""

    name: str
    text: Callable[[Row], str]
    value: Callable[[Row], float | None]
    always: bool = False
    """Shown even if no row has anything to say in it."""


MEASURES = (
    Measure(
        name="top-1",
        text=lambda row: "-" if row.top1 is None else f"{row.top1:.3f}",
        value=lambda row: row.top1,
        always=True,
    ),
    Measure(
        name="NaN at",
        text=lambda row: "-" if row.first_nonfinite_step is None else f"step {row.first_nonfinite_step}",
        value=lambda row: row.first_nonfinite_step,
    ),
    Measure(
        name="skipped",
        text=lambda row: str(row.skipped) if row.failure is None else "-",
        value=lambda row: row.skipped if row.failure is None else None,
    ),
    Measure(
        name="saved",
        text=lambda row: "-" if row.saved_activation_bytes is None else size_text(row.saved_activation_bytes),
        value=lambda row: row.saved_activation_bytes,
    ),
    Measure(name="time", text=lambda row: f"{row.seconds:.1f} s", value=lambda row: row.seconds, always=True),
)


def measures_of(rows: Sequence[Row]) -> list[Measure]:
    """Return the columns in which something is to be said about these rows."""
    return [each for each in MEASURES if each.always or any(each.text(row) not in ("-", "0") for row in rows)]


def table_of(rows: Sequence[Row], axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the header and a line of cells for each row; a column in which nothing was to be said is left out."""
    measures = measures_of(rows)
    notes = ["note"] if any(row.note for row in rows) else []
    header = (*axes, *(measure.name for measure in measures), *notes)
    lines = [
        (
            *(row.labels.get(axis, "-") for axis in axes),
            *(measure.text(row) for measure in measures),
            *([row.note] if notes else []),
        )
        for row in rows
    ]
    return [header, *lines]


def csv_of(rows: Sequence[Row], axes: Sequence[str]) -> str:
    """Return a line for each row under a header: its labels, everything measured, and the whole note."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*axes, *_CSV_COLUMNS])
    for row in rows:
        values = (getattr(row, name) for name in _CSV_COLUMNS)
        writer.writerow([*(row.labels.get(axis, "") for axis in axes), *("" if v is None else v for v in values)])
    return text.getvalue()


def size_text(num_bytes: int) -> str:
    """Return bytes with three digits.

    >>> size_text(1_234_567)
    '1.23 MB'
    """
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"
