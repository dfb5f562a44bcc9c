"""Progress of long commands: a bar on a terminal, one line per step elsewhere, and how to continue after Ctrl-C."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from roundoff.cli.console.screen import is_live

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.status import Status

    from roundoff.experiments.bisect.options import BisectEvent
    from roundoff.experiments.sweep.sweep_rows import SweepRow


class SweepProgress:
    """A bar with the time left on a terminal, a line a row elsewhere; after an interrupt, how to go on."""

    def __init__(self, *, num_rows: int, again: str) -> None:
        self._num_rows, self._num_done, self._again = num_rows, 0, again
        self._bar = _sweep_bar() if is_live() else None
        self._task = self._bar.add_task("", total=num_rows) if self._bar else None

    def row(self, row: SweepRow, is_new: bool) -> None:
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


def _outcome(row: SweepRow) -> str:
    if row.top1 is None:
        return row.note
    bad = "" if row.first_nonfinite_step is None else f", not finite at step {row.first_nonfinite_step}"
    skipped = f", {row.skipped} skipped" if row.skipped else ""
    return f"top-1 {row.top1:.3f}{bad}{skipped}, {row.seconds:.1f} s"


def _sweep_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("rows"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn())
    return Progress(
        *columns, TextColumn("{task.description}", markup=False), console=Console(stderr=True), transient=True
    )


class PlanProgress:
    """A line for everything that has ended, under it on a terminal a sign of life; after an interrupt, how to go on."""

    def __init__(self, *, again: str) -> None:
        self._again = again
        self._status = _plan_status() if is_live() else None

    def tell(self, line: str) -> None:
        """Show one line."""
        if self._status is None:
            click.echo(line, err=True)
        else:
            self._status.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            click.echo(f"every training that has ended is kept. To go on: {self._again}", err=True)


def _plan_status() -> Status:
    from rich.console import Console

    return Console(stderr=True).status("planning")


_MAX_SHOWN = 4
_WIDTH = 100


class BisectProgress:
    """A bar with what is known and the time left on a terminal, a line a run elsewhere; after an interrupt, both."""

    def __init__(self, *, again: str) -> None:
        self._again = again
        self._known: tuple[str, ...] = ()
        self._num_runs = 0
        self._bar = _bisect_bar() if is_live() else None
        self._task = self._bar.add_task("begins", total=None) if self._bar else None

    def tell(self, event: BisectEvent) -> None:
        """Show what one more run has shown."""
        self._num_runs = event.num_runs or self._num_runs
        self._known = event.known or self._known
        line = bisect_line(event)
        if self._bar is None or self._task is None:
            click.echo(line, err=True)
            return
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._bar.update(
            self._task, total=event.at_most, completed=event.num_runs or 0, description=known_text(event.known)
        )

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
            known = known_text(self._known) or "nothing is known yet"
            click.echo(f"interrupted after {self._num_runs} runs of the search; {known}", err=True)
            click.echo(f"every run is kept. To go on: {self._again}", err=True)


def bisect_line(event: BisectEvent) -> str:
    """Write one run as one line, with as many of the suspects as fit."""
    lines = (_format_bisect_line(event, most=most) for most in range(_MAX_SHOWN, -1, -1))
    shortest = _format_bisect_line(replace(event, seconds_left=None), most=0)
    line = next((line for line in lines if len(line) <= _WIDTH), shortest)
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4]} ..."


def _format_bisect_line(event: BisectEvent, *, most: int) -> str:
    kept = "" if event.is_new else " (kept)"
    verdict = f": {event.verdict}" if event.verdict else ""
    if event.num_runs is None:
        return f"[before] {event.what}{verdict}{kept}"
    place = f"{event.num_runs}" if event.at_most is None else f"{event.num_runs}/{event.at_most}"
    known = f"; {known_text(event.known, most=most)}" if event.known else ""
    left = "" if event.seconds_left is None else f"; {_duration(event.seconds_left)} left at most"
    return f"[{place}] {event.what}{verdict}{kept}{known}{left}"


def known_text(known: tuple[str, ...], *, most: int = _MAX_SHOWN) -> str:
    """Say among which sites the culprits are.

    >>> known_text(("embed", "head"))
    'culprits among 2 sites: embed, head'
    """
    if not known:
        return ""
    if len(known) == 1:
        return f"culprit {known[0]}"
    if most == 0:
        return f"culprits among {len(known)} sites"
    more = "" if len(known) <= most else f" and {len(known) - most} more"
    return f"culprits among {len(known)} sites: {', '.join(known[:most])}{more}"


def _duration(seconds: float) -> str:
    """Write a time as somebody who waits wants it.

    >>> _duration(7.2), _duration(180)
    ('7 s', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _bisect_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("runs"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    return Progress(
        *columns, TextColumn("{task.description}", markup=False), console=Console(stderr=True), transient=True
    )
