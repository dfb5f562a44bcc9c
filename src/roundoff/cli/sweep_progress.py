"""What somebody who waits for a sweep sees."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from roundoff.cli.screen import is_live

if TYPE_CHECKING:
    from rich.progress import Progress

    from roundoff.experiments.row import Row


class SweepProgress:
    """A bar with the time left on a terminal, a line a row elsewhere; after an interrupt, how to go on."""

    def __init__(self, *, num_rows: int, again: str) -> None:
        self._num_rows, self._num_done, self._again = num_rows, 0, again
        self._bar = _bar() if is_live() else None
        self._task = self._bar.add_task("", total=num_rows) if self._bar else None

    def row(self, row: Row, is_new: bool) -> None:
        """Count a row, and say what it came to."""
        self._num_done += 1
        line = f"[{self._num_done}/{self._num_rows}] {row.name}: {_outcome(row)}{'' if is_new else ' (kept)'}"
        if self._bar is None or self._task is None:
            click.echo(line, err=True)
            return
        self._bar.update(self._task, completed=self._num_done, description=row.name)
        if row.failure is not None:
            # Told above the bar at once: a mistake in the file often fails every row.
            self._bar.console.print(line, markup=False, highlight=False)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            click.echo(f"{self._num_done} of {self._num_rows} rows are kept. To go on: {self._again}", err=True)


def _outcome(row: Row) -> str:
    if row.top1 is None:
        return row.note
    bad = "" if row.first_nonfinite_step is None else f", not finite at step {row.first_nonfinite_step}"
    skipped = f", {row.skipped} skipped" if row.skipped else ""
    return f"top-1 {row.top1:.3f}{bad}{skipped}, {row.seconds:.1f} s"


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("rows"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn())
    return Progress(
        *columns, TextColumn("{task.description}", markup=False), console=Console(stderr=True), transient=True
    )
