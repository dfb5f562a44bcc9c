"""Some of a run's steps, at even distances: what a small picture of a long run is drawn from."""

from __future__ import annotations

import os
from pathlib import Path

from roundoff.errors import RunFolderError
from roundoff.runs.folder import metrics_path
from roundoff.runs.lines import read_last_line, read_lines
from roundoff.runs.metrics import Metrics
from roundoff.runs.plain_json import from_json

_SMALL_BYTES = 2**14
"""A file of that size, about a hundred steps, is read whole."""
_WINDOW_BYTES = 2**11
"""So much is read at each place: a line that ends before, and a whole one."""


def sampled_metrics(folder: Path, *, rank: int = 0, most: int = 32) -> list[Metrics]:
    """Return the first step, the last whole one and others at even distances between; all of a short run.

    What it costs does not depend on how long the run is. A line that cannot be read costs its place only.
    """
    path = metrics_path(folder, rank=rank)
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
    """Return the step of the first line that begins at `offset` or behind it; None if there is none to be read."""
    begin = max(0, offset - 1)  # the byte before tells whether a line begins here
    text = os.pread(descriptor, _WINDOW_BYTES, begin)
    lines = text.split(b"\n") if offset == 0 else text.split(b"\n")[1:]
    if len(lines) < 2:
        return None
    try:
        value = from_json(lines[0])
        return Metrics.from_object(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None
