"""What a user sees while something runs: a bar on a terminal, and lines, one per phase, everywhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress


def is_live(stream: TextIO | None = None) -> bool:
    """Whether a bar can move on a stream, by default stderr: a terminal that is not dumb."""
    return (stream or sys.stderr).isatty() and os.environ.get("TERM") != "dumb"


class ProgressBar:
    """Shows on stderr how far something has come; a block, so that the bar is gone afterwards.

    Args:
        unit: What is counted, as the bar says it: `step`, `rows`.
        total: How many there will be; None if that is not known.
        shown: False shows nothing at all.
        time: Which time the bar shows: what is left, or what has elapsed.
        on_interrupt: Returns the lines to print after Ctrl-C: what is kept, and how to resume.
    """

    def __init__(
        self,
        unit: str,
        *,
        total: int | None = None,
        shown: bool = True,
        time: Literal["left", "elapsed"] = "left",
        on_interrupt: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._shown, self._on_interrupt = shown, on_interrupt
        self._bar = _make_bar(unit, time=time) if shown and is_live() else None
        self._task = self._bar.add_task("", total=total) if self._bar else None

    @property
    def is_bar(self) -> bool:
        """Whether there is a bar, and not only lines."""
        return self._bar is not None

    def line(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif self._shown:
            print(text, file=sys.stderr, flush=True)

    def move(self, completed: int, *, total: int | None = None, description: str = "") -> None:
        """Move the bar; where there is none, nothing is printed."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=completed, total=total, description=description)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            for text in self._on_interrupt():
                print(text, file=sys.stderr, flush=True)


def _make_bar(unit: str, *, time: Literal["left", "elapsed"]) -> Progress:
    # Imported here: importing rich takes longer than most commands that show no bar.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn(unit),
        MofNCompleteColumn(),
        BarColumn(),
        TimeRemainingColumn() if time == "left" else TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
