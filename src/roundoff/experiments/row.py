"""One row of a sweep's table: what a training came to, or how it failed; kept line by line in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from roundoff.runs import JsonValue
from roundoff.runs.lines import append_lines, read_lines
from roundoff.runs.plain_json import to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
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
    def from_object(cls, value: Mapping[str, Any]) -> Row:
        """Read what `to_object` wrote; a `ValueError` says what is missing. Fields of newer versions are ignored."""
        known = {field.name for field in fields(cls)}
        if not {"key", "labels", "settings"} <= set(value):
            raise ValueError("it has no key, labels or settings")
        return cls(**{name: item for name, item in value.items() if name in known})


def append_row(path: Path, row: Row) -> None:
    """Write a row at the end of the file at once: it is then safe from what happens to this process."""
    append_lines(path, [to_json(row.to_object())])


def read_rows(path: Path) -> dict[str, Row]:
    """Return the rows of a file by key; of two with the same key the later one, and none if there is no file."""
    return {row.key: row for row in read_lines(path, Row.from_object)}
