"""A sweep's rows as cells: for the table that people read, and for the CSV file that keeps everything."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from roundoff.experiments.row import Row

LEFT = ("note",)
"""Columns of words; those of the axes are, too."""

_CSV_COLUMNS = (
    *("top1", "eval_loss", "steps", "first_nonfinite_step", "ended_nonfinite", "skipped"),
    *("saved_activation_bytes", "seconds", "failure", "note"),
)


def table_of(rows: Sequence[Row], axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the header and a line of cells for each row; a column in which nothing was to be said is left out."""
    header = (*axes, "top-1", "NaN at", "skipped", "saved", "time", "note")
    lines = [_cells(row, axes) for row in rows]
    kept = [
        place
        for place, name in enumerate(header)
        if name not in ("NaN at", "skipped", "saved", "note")
        or any(line[place] not in ("", "-", "0") for line in lines)
    ]
    return [tuple(line[place] for place in kept) for line in (header, *lines)]


def csv_of(rows: Sequence[Row], axes: Sequence[str]) -> str:
    """Return a line for each row under a header: its labels, everything measured, and the whole note."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*axes, *_CSV_COLUMNS])
    for row in rows:
        values = (getattr(row, name) for name in _CSV_COLUMNS)
        writer.writerow([*(row.labels.get(axis, "") for axis in axes), *("" if v is None else v for v in values)])
    return text.getvalue()


def _cells(row: Row, axes: Sequence[str]) -> tuple[str, ...]:
    return (
        *(row.labels.get(axis, "-") for axis in axes),
        "-" if row.top1 is None else f"{row.top1:.3f}",
        "-" if row.first_nonfinite_step is None else f"step {row.first_nonfinite_step}",
        str(row.skipped) if row.failure is None else "-",
        "-" if row.saved_activation_bytes is None else size_text(row.saved_activation_bytes),
        f"{row.seconds:.1f} s",
        row.note,
    )


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
