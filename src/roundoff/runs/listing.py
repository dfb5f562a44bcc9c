"""The runs that lie side by side in a folder, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roundoff.errors import RunFolderError
from roundoff.runs import folder as names
from roundoff.runs.finding import Finding
from roundoff.runs.info import Status
from roundoff.runs.lines import read_last_line
from roundoff.runs.metrics import Metrics
from roundoff.runs.plain_json import JsonValue
from roundoff.runs.reader import Run
from roundoff.runs.typed_json import object_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a list of runs says about one of them."""

    path: Path
    started: str
    status: Status
    recipe: str | None
    num_steps: int
    last_loss: float | None
    findings: tuple[Finding, ...] | None
    """The verdict first; None if the run was not diagnosed."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return the summary as a JSON object."""
        found = None if self.findings is None else [finding.to_object() for finding in self.findings]
        return object_of(self) | {"path": str(self.path), "findings": found}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRun:
    """A folder that should be a run and cannot be read."""

    path: Path
    problem: str

    def to_object(self) -> dict[str, JsonValue]:
        """Return the summary as a JSON object."""
        return {"path": str(self.path), "problem": self.problem}


def list_runs(folder: Path) -> list[RunSummary | UnreadableRun]:
    """Return the runs in `folder`, the oldest first, unreadable ones last; or `folder` itself if it is a run."""
    if (folder / names.INFO_NAME).exists():
        return [summarize_run(folder)]
    inside = folder.iterdir() if folder.is_dir() else ()
    runs = [summarize_run(path) for path in sorted(inside) if (path / names.INFO_NAME).exists()]
    readable = [run for run in runs if isinstance(run, RunSummary)]
    unreadable = [run for run in runs if isinstance(run, UnreadableRun)]
    return [*sorted(readable, key=lambda run: run.started), *unreadable]


def summarize_run(path: Path) -> RunSummary | UnreadableRun:
    """Return what a list says about a run; only the ends of its files are read."""
    try:
        run = Run.open(path)
        last = read_last_line(names.metrics_path(path, rank=0), Metrics.from_object)
        findings = run.findings()
    except RunFolderError as error:
        return UnreadableRun(path=path, problem=str(error))
    return RunSummary(
        path=path,
        started=run.info.started,
        status=run.info.status,
        recipe=run.info.recipe,
        num_steps=0 if last is None else last.step + 1,
        last_loss=None if last is None else last.loss,
        findings=None if findings is None else tuple(findings),
    )
