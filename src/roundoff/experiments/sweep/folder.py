"""The folder of a sweep: what was planned, the rows so far, and what each training left; all of it readable later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roundoff.errors import SweepError
from roundoff.experiments.sweep.definition import Sweep
from roundoff.experiments.sweep.sweep_rows import SweepRow, read_rows
from roundoff.runs import Metrics, to_json
from roundoff.runs.files.atomic import write_atomically
from roundoff.runs.files.lines import read_lines
from roundoff.runs.files.plain_json import read_json_object


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFolder:
    """Where everything of a sweep is."""

    path: Path

    @property
    def plan(self) -> Path:
        """What was asked for last: name, description, axes, and key and labels of every row."""
        return self.path / "sweep.json"

    @property
    def rows(self) -> Path:
        """The rows, one JSON object a line, as they came; of two with one key the later one counts."""
        return self.path / "rows.jsonl"

    @property
    def csv(self) -> Path:
        """The rows as a table for other programs."""
        return self.path / "rows.csv"

    @property
    def page(self) -> Path:
        """The rows as a page for people."""
        return self.path / "report.html"

    def metrics(self, key: str) -> Path:
        """The metrics of every step of a training, as in a run folder."""
        return self.path / "metrics" / f"{key}.jsonl"

    def recipe(self, key: str) -> Path:
        """The recipe of a training, if it has no name."""
        return self.path / "recipes" / f"{key}.toml"

    def log(self, number: int) -> Path:
        """What a training printed, if it did."""
        return self.path / "logs" / f"{number}.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """One row that was asked for, and what it came to if it is there."""

    key: str
    labels: Mapping[str, str]
    row: SweepRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSweep:
    """A sweep as its folder tells it, finished or not."""

    name: str
    description: str
    axes: tuple[str, ...]
    planned: tuple[StoredRow, ...]
    """What was asked for, in its order."""

    @property
    def rows(self) -> list[SweepRow]:
        """The rows that are there."""
        return [each.row for each in self.planned if each.row is not None]


def write_request(folder: SweepFolder, sweep: Sweep) -> None:
    """Write down what is going to be trained."""
    plan: dict[str, Any] = {
        "name": sweep.name,
        "description": sweep.description,
        "axes": list(sweep.axes),
        "rows": [{"key": training.key, "labels": dict(training.labels)} for training in sweep.trainings],
    }
    write_atomically(folder.plan, f"{to_json(plan, indent=1)}\n".encode())


def read_sweep_folder(path: Path) -> StoredSweep:
    """Return the sweep that a folder holds, with the rows it has so far.

    Raises:
        SweepError: there is none.
        RunFolderError: a file in it is broken.
    """
    folder = SweepFolder(path=path)
    if not folder.plan.exists():
        raise SweepError.explain(
            f"'{path}' holds no sweep.",
            why=f"there is no {folder.plan.name} in it." if path.is_dir() else "there is no such folder.",
            fix="name a folder that roundoff sweep wrote: runs/NAME",
        )
    plan: Mapping[str, Any] = read_json_object(folder.plan)
    rows = read_rows(folder.rows)
    try:
        return StoredSweep(
            name=str(plan["name"]),
            description=str(plan["description"]),
            axes=tuple(plan["axes"]),
            planned=tuple(_stored_row(rows.get(each["key"]), **each) for each in plan["rows"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SweepError.explain(
            f"'{folder.plan}' cannot be read.", why=f"it does not say what was planned ({error})."
        ) from error


def _stored_row(row: SweepRow | None, *, key: str, labels: Mapping[str, object]) -> StoredRow:
    """Return a row under the labels of the plan: a renamed label changes no number."""
    if not key.isalnum():
        raise ValueError(f"{key!r} is not a key")  # it becomes the name of a file
    # A label such as "inf" comes back as a number.
    texts = {axis: str(label) for axis, label in labels.items()}
    return StoredRow(key=key, labels=texts, row=None if row is None else replace(row, labels=texts))


def read_losses(folder: SweepFolder, key: str) -> list[float]:
    """Return the loss of every step of a training; none if it has not begun."""
    metrics = read_lines(folder.metrics(key), Metrics.from_object)
    return [step.loss for step in metrics if step.loss is not None]
