"""The runs in a folder, summarized without reading them whole: a line each, and a few steps for a small picture."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from roundoff.errors import RunFolderError
from roundoff.runs.files import folder as names
from roundoff.runs.files.lines import read_last_line, read_lines
from roundoff.runs.files.plain_json import JsonValue, from_json, object_of
from roundoff.runs.reader import Run
from roundoff.runs.records.finding import Finding
from roundoff.runs.records.info import Status
from roundoff.runs.records.metrics import Metrics

_SMALL_BYTES = 2**14
"""A file of that size, about a hundred steps, is read whole."""
_WINDOW_BYTES = 2**11
"""Bytes read at each place: enough for the end of one line and all of the next."""


def sampled_metrics(folder: Path, *, most: int = 32) -> list[Metrics]:
    """Return the first step of rank 0, the last whole one and others at even distances between; all of a short run.

    What it costs does not depend on how long the run is. A line that cannot be read is left out.
    """
    path = names.metrics_path(folder, rank=0)
    try:
        size = path.stat().st_size
        if size <= _SMALL_BYTES:
            return list(read_lines(path, Metrics.from_object))
        with path.open("rb") as file:
            places = [_step_after(file.fileno(), size * nth // most) for nth in range(most)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error.strerror}.") from error
    found = [*places, read_last_line(path, Metrics.from_object)]
    by_step = {metrics.step: metrics for metrics in found if metrics is not None}
    return [by_step[step] for step in sorted(by_step)]


def _step_after(descriptor: int, offset: int) -> Metrics | None:
    """Return the step of the first line that begins at or after `offset`; None if there is none."""
    begin = max(0, offset - 1)  # the byte before shows whether a line begins here
    text = os.pread(descriptor, _WINDOW_BYTES, begin)
    lines = text.split(b"\n") if offset == 0 else text.split(b"\n")[1:]
    if len(lines) < 2:
        return None
    try:
        value = from_json(lines[0])
        return Metrics.from_object(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


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
    if names.info_path(folder).exists():
        return [summarize_run(folder)]
    inside = folder.iterdir() if folder.is_dir() else ()
    runs = [summarize_run(path) for path in sorted(inside) if names.info_path(path).exists()]
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
