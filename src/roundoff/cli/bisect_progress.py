"""What somebody who waits for a bisection sees."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from roundoff.cli.screen import is_live

if TYPE_CHECKING:
    from rich.progress import Progress

    from roundoff.experiments.bisect_options import BisectEvent

_MOST_SHOWN = 4
_WIDTH = 100


class BisectProgress:
    """A bar with what is known and the time left on a terminal, a line a run elsewhere; after an interrupt, both."""

    def __init__(self, *, again: str) -> None:
        self._again = again
        self._known: tuple[str, ...] = ()
        self._num_runs = 0
        self._bar = _bar() if is_live() else None
        self._task = self._bar.add_task("begins", total=None) if self._bar else None

    def tell(self, event: BisectEvent) -> None:
        """Show what one more run has shown."""
        self._num_runs = event.num_runs or self._num_runs
        self._known = event.known or self._known
        line = line_of(event)
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


def line_of(event: BisectEvent) -> str:
    """Write one run as one line, with as many of the suspects as fit."""
    lines = (_line(event, most=most) for most in range(_MOST_SHOWN, -1, -1))
    shortest = _line(replace(event, seconds_left=None), most=0)
    line = next((line for line in lines if len(line) <= _WIDTH), shortest)
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4]} ..."


def _line(event: BisectEvent, *, most: int) -> str:
    kept = "" if event.is_new else " (kept)"
    verdict = f": {event.verdict}" if event.verdict else ""
    if event.num_runs is None:
        return f"[before] {event.what}{verdict}{kept}"
    place = f"{event.num_runs}" if event.at_most is None else f"{event.num_runs}/{event.at_most}"
    known = f"; {known_text(event.known, most=most)}" if event.known else ""
    left = "" if event.seconds_left is None else f"; {_duration(event.seconds_left)} left at most"
    return f"[{place}] {event.what}{verdict}{kept}{known}{left}"


def known_text(known: tuple[str, ...], *, most: int = _MOST_SHOWN) -> str:
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


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("runs"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    return Progress(
        *columns, TextColumn("{task.description}", markup=False), console=Console(stderr=True), transient=True
    )
