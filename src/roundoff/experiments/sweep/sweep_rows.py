"""The rows of a sweep: the result of each training, in a file, as a table, as CSV and in one sentence."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roundoff.runs import JsonValue
from roundoff.runs.files.lines import append_lines, read_lines
from roundoff.runs.files.plain_json import object_from, to_json
from roundoff.words import plural, size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """The result of one training. Numbers are None if a failed training has none."""

    key: str
    """A fingerprint of the settings: a row is trained again only if it changes."""
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
    """What the forward pass of one batch saved for its backward pass."""
    seconds: float = 0.0
    """The training time without evaluation; for a failed training, the time until it failed."""
    failure: str | None = None
    note: str = ""
    settings: Mapping[str, JsonValue]
    """All settings of the training."""
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
        """Read what `to_object` wrote; a `ValueError` says what is missing. Unknown fields are ignored."""
        return object_from(cls, value)


def append_row(path: Path, row: SweepRow) -> None:
    """Append a row to the file at once, so that it survives whatever happens to this process."""
    append_lines(path, [to_json(row.to_object())])


def read_rows(path: Path) -> dict[str, SweepRow]:
    """Return the rows of a file by key; later rows replace earlier ones; empty if there is no file."""
    return {row.key: row for row in read_lines(path, SweepRow.from_object)}


def summarize_rows(rows: Sequence[SweepRow], *, num_planned: int) -> str:
    """Return the rows in one sentence: how many, how many failed or went non-finite, and the best of the others."""
    if not rows:
        return f"None of the {num_planned} rows is finished yet."
    counted = f"{len(rows)} of {num_planned} rows so far" if len(rows) < num_planned else plural(len(rows), "row")
    failed = sum(row.failure is not None for row in rows)
    nonfinite = sum(is_nonfinite(row) for row in rows)
    troubles = [f"{nonfinite} went non-finite" if nonfinite else "", f"{failed} failed" if failed else ""]
    trouble = ", ".join(filter(None, troubles)) or "none went non-finite"
    return f"{counted}: {trouble}{_best(rows)}."


def is_nonfinite(row: SweepRow) -> bool:
    """Whether the loss of a step or of the evaluation was NaN or infinite."""
    return row.first_nonfinite_step is not None or row.ended_nonfinite


def _best(rows: Sequence[SweepRow]) -> str:
    good = [row for row in rows if row.top1 is not None and not is_nonfinite(row)]
    if not good:
        return "; no row is good"
    most = max(row.top1 or 0.0 for row in good)
    best = [row for row in good if row.top1 == most]
    others = f", tied with {plural(len(best) - 1, 'other')}" if len(best) > 1 else ""
    return f"; best is '{best[0].name}' with top-1 {most:.3f}{others}"


TEXT_COLUMNS = ("note",)
"""Columns of text, besides those of the axes."""

_CSV_COLUMNS = (
    *("top1", "eval_loss", "steps", "first_nonfinite_step", "ended_nonfinite", "skipped"),
    *("saved_activation_bytes", "seconds", "failure", "note"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumn:
    """A column of numbers: its text and its value for each row."""

    name: str
    text: Callable[[SweepRow], str]
    value: Callable[[SweepRow], float | None]
    always: bool = False
    """Whether it is shown even if it is empty for every row."""


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
    """Return the columns that are not empty for these rows."""
    return [each for each in ROW_COLUMNS if each.always or any(each.text(row) not in ("-", "0") for row in rows)]


def rows_table(rows: Sequence[SweepRow], axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the header and a line of cells for each row; empty columns are left out."""
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
    """Return the rows as CSV with a header: labels, all measurements, and the note."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*axes, *_CSV_COLUMNS])
    for row in rows:
        values = (getattr(row, name) for name in _CSV_COLUMNS)
        writer.writerow([*(row.labels.get(axis, "") for axis in axes), *("" if v is None else v for v in values)])
    return text.getvalue()
