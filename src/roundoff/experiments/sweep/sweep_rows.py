"""One row of a sweep's table: what a training came to, or how it failed; kept line by line in a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from roundoff.runs import JsonValue
from roundoff.runs.files.lines import append_lines, read_lines
from roundoff.runs.files.plain_json import to_json
from roundoff.words import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """What one training came to. Numbers are None where a failed training has none."""

    key: str
    """Fingerprint of the settings: a row is trained again only if it changes."""
    labels: Mapping[str, str]
    top1: float | None = None
    eval_loss: float | None = None
    steps: int = 0
    first_nonfinite_step: int | None = None
    """The first step whose loss was NaN or infinite."""
    ended_nonfinite: bool = False
    skipped: int = 0
    """Steps that loss scaling skipped."""
    saved_activation_bytes: int | None = None
    """What one forward of a whole batch kept for its backward."""
    seconds: float = 0.0
    """Time spent training, without evaluation; of a failed one, until it failed."""
    failure: str | None = None
    note: str = ""
    settings: Mapping[str, JsonValue]
    """Everything the training was told."""
    recipe_toml: str | None = None

    @property
    def name(self) -> str:
        """The labels in one line."""
        return ", ".join(self.labels.values())

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        return asdict(self)

    @classmethod
    def from_object(cls, value: Mapping[str, Any]) -> SweepRow:
        """Read what `to_object` wrote; a `ValueError` says what is missing. Fields of newer versions are ignored."""
        known = {field.name for field in fields(cls)}
        if not {"key", "labels", "settings"} <= set(value):
            raise ValueError("it has no key, labels or settings")
        return cls(**{name: item for name, item in value.items() if name in known})


def append_row(path: Path, row: SweepRow) -> None:
    """Write a row at the end of the file at once: it is then safe from what happens to this process."""
    append_lines(path, [to_json(row.to_object())])


def read_rows(path: Path) -> dict[str, SweepRow]:
    """Return the rows of a file by key; of two with the same key the later one, and none if there is no file."""
    return {row.key: row for row in read_lines(path, SweepRow.from_object)}


# == A sweep in one sentence: how many rows, how many went wrong, and which is best.


def summarize_rows(rows: Sequence[SweepRow], *, num_planned: int) -> str:
    """Say what the rows came to; one that crashed or went non-finite is counted and never the best."""
    if not rows:
        return f"None of the {num_planned} rows is there yet."
    counted = f"{len(rows)} of {num_planned} rows so far" if len(rows) < num_planned else plural(len(rows), "row")
    failed = sum(row.failure is not None for row in rows)
    nonfinite = sum(is_nonfinite(row) for row in rows)
    troubles = [f"{nonfinite} went non-finite" if nonfinite else "", f"{failed} failed" if failed else ""]
    trouble = ", ".join(filter(None, troubles)) or "none went non-finite"
    return f"{counted}: {trouble}{_best(rows)}."


def is_nonfinite(row: SweepRow) -> bool:
    """Whether a loss was NaN or infinite, be it of a step or of the evaluation."""
    return row.first_nonfinite_step is not None or row.ended_nonfinite


def _best(rows: Sequence[SweepRow]) -> str:
    good = [row for row in rows if row.top1 is not None and not is_nonfinite(row)]
    if not good:
        return "; no row is good"
    most = max(row.top1 or 0.0 for row in good)
    best = [row for row in good if row.top1 == most]
    others = f", level with {plural(len(best) - 1, 'other')}" if len(best) > 1 else ""
    return f"; best is '{best[0].name}' with top-1 {most:.3f}{others}"


# == A sweep's rows as cells: for the tables that people read, and for the CSV file that keeps everything.

TEXT_COLUMNS = ("note",)
"""Columns of words; those of the axes are, too."""

_CSV_COLUMNS = (
    *("top1", "eval_loss", "steps", "first_nonfinite_step", "ended_nonfinite", "skipped"),
    *("saved_activation_bytes", "seconds", "failure", "note"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumn:
    """A column of numbers: how a row's number is written, and what it is."""

    name: str
    text: Callable[[SweepRow], str]
    value: Callable[[SweepRow], float | None]
    always: bool = False
    """Shown even if no row has anything to say in it."""


ROW_COLUMNS = (
    RowColumn(
        name="top-1",
        text=lambda row: "-" if row.top1 is None else f"{row.top1:.3f}",
        value=lambda row: row.top1,
        always=True,
    ),
    RowColumn(
        name="NaN at",
        text=lambda row: "-" if row.first_nonfinite_step is None else f"step {row.first_nonfinite_step}",
        value=lambda row: row.first_nonfinite_step,
    ),
    RowColumn(
        name="skipped",
        text=lambda row: str(row.skipped) if row.failure is None else "-",
        value=lambda row: row.skipped if row.failure is None else None,
    ),
    RowColumn(
        name="saved",
        text=lambda row: "-" if row.saved_activation_bytes is None else size_text(row.saved_activation_bytes),
        value=lambda row: row.saved_activation_bytes,
    ),
    RowColumn(name="time", text=lambda row: f"{row.seconds:.1f} s", value=lambda row: row.seconds, always=True),
)


def shown_columns(rows: Sequence[SweepRow]) -> list[RowColumn]:
    """Return the columns in which something is to be said about these rows."""
    return [each for each in ROW_COLUMNS if each.always or any(each.text(row) not in ("-", "0") for row in rows)]


def rows_table(rows: Sequence[SweepRow], axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the header and a line of cells for each row; a column in which nothing was to be said is left out."""
    measures = shown_columns(rows)
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


def rows_csv(rows: Sequence[SweepRow], axes: Sequence[str]) -> str:
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
