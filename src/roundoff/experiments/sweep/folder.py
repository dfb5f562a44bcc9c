"""The folder of a sweep: the request, the rows so far, and the files of each training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from roundoff.errors import RoundoffError, SweepError
from roundoff.experiments.experiment_folder import ExperimentFolder
from roundoff.experiments.sweep.definition import Sweep
from roundoff.experiments.sweep.sweep_rows import SweepRow, read_rows
from roundoff.runs import Metrics
from roundoff.runs.files.lines import read_lines


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
