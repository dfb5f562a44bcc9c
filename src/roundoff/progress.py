"""What a user sees while something runs: a bar on a terminal, lines, one per phase, everywhere, and why it waits."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from time import monotonic, process_time
from typing import TYPE_CHECKING, Literal, Self, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")


def is_live(stream: TextIO | None = None) -> bool:
    """Whether a bar can move on a stream, by default stderr: a terminal that is not dumb."""
    return (stream or sys.stderr).isatty() and os.environ.get("TERM") != "dumb"


def say(text: str, *, stream: TextIO | None = None) -> None:
    """Tell the user something: a line `roundoff: ...` on stderr, unless the logger `roundoff` has handlers.

    Those get it then, and nothing is printed; a higher level of that logger silences it. The root logger and what a
    script configures there change nothing: the line is neither lost nor printed twice.
    """
    logger = logging.getLogger("roundoff")
    if logger.level > logging.WARNING:
        return
    if not logger.handlers:
        print(f"roundoff: {text}", file=stream or sys.stderr, flush=True)
        return
    record = logger.makeRecord(logger.name, logging.WARNING, __file__, 0, text, (), None)
    for handler in logger.handlers:
        if record.levelno >= handler.level:
            handler.handle(record)


class ProgressBar:
    """Shows how far something has come; a block, so that the bar is gone afterwards.

    Args:
        unit: What is counted, as the bar says it: `step`, `rows`. Or what is done, where nothing is counted.
        is_counted: False shows no bar, only that it goes on.
        total: How many there will be; None if that is not known.
        shown: False shows nothing at all.
        time: Which time the bar shows: what is left, or what has elapsed.
        on_interrupt: Returns the lines to print after Ctrl-C: what is kept, and how to resume.
        stream: stderr by default.
    """

    def __init__(
        self,
        unit: str,
        *,
        is_counted: bool = True,
        total: int | None = None,
        shown: bool = True,
        time: Literal["left", "elapsed"] = "left",
        on_interrupt: Callable[[], Sequence[str]] = tuple,
        stream: TextIO | None = None,
    ) -> None:
        self._shown, self._on_interrupt, self._stream = shown, on_interrupt, stream or sys.stderr
        is_bar = shown and is_live(self._stream)
        self._bar = _make_bar(unit, is_counted=is_counted, time=time, stream=self._stream) if is_bar else None
        self._task = self._bar.add_task("", total=total) if self._bar else None

    @property
    def is_bar(self) -> bool:
        """Whether there is a bar, and not only lines."""
        return self._bar is not None

    def line(self, text: str, *, style: str = "") -> None:
        """Print a line, above the bar if there is one; only then in a style."""
        if self._bar is not None:
            from rich.text import Text

            # As a Text: a style that is given to print colours the bar below, too.
            self._bar.console.print(Text(text, style=style), soft_wrap=True)
        elif self._shown:
            print(text, file=self._stream, flush=True)

    def move(
        self, completed: int, *, total: int | None = None, description: str = "", seconds_left: float | None = None
    ) -> None:
        """Move the bar; where there is none, nothing is printed. Without `seconds_left` the time left is estimated."""
        if self._bar is not None and self._task is not None:
            ends_at = None if seconds_left is None else monotonic() + seconds_left
            self._bar.update(self._task, completed=completed, total=total, description=description, ends_at=ends_at)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            for text in self._on_interrupt():
                print(text, file=sys.stderr, flush=True)


def _make_bar(unit: str, *, is_counted: bool, time: Literal["left", "elapsed"], stream: TextIO) -> Progress:
    # Imported here: importing rich takes longer than most commands that show no bar.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class TimeLeft(TimeRemainingColumn):
        """A countdown of the time that the caller expects, where it does."""

        def render(self, task: Task) -> Text:
            ends_at = task.fields.get("ends_at")
            return super().render(task) if ends_at is None else Text(f"{max(1.0, ends_at - monotonic()):.0f} s left")

    return Progress(
        SpinnerColumn("line"),
        TextColumn(unit.replace("{", "{{").replace("}", "}}"), markup=False),
        *((MofNCompleteColumn(), BarColumn()) if is_counted else ()),
        TimeLeft() if time == "left" else TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(file=stream),
        transient=True,
    )


_SHOWN_BAR: ContextVar[ProgressBar | None] = ContextVar("shown bar", default=None)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal what is being waited for and for how long, until the block has ended; nothing elsewhere.

    Inside of it `counting` also shows how far it has come.
    """
    with ProgressBar(what, is_counted=False, time="elapsed") as bar:
        token = _SHOWN_BAR.set(bar)
        try:
            yield
        finally:
            _SHOWN_BAR.reset(token)


def counting(items: Collection[T], noun: str) -> Iterator[T]:
    """Yield the items; the bar of the `waiting` around it, if there is one, shows how many are done and the time left.

    >>> list(counting([1, 2], "step"))
    [1, 2]
    """
    bar = _SHOWN_BAR.get()
    if bar is None or not bar.is_bar or len(items) < 2:
        yield from items
        return
    began = monotonic()
    for place, item in enumerate(items):
        left = (monotonic() - began) / place * (len(items) - place) if place else None
        bar.move(0, description=f"{noun} {place + 1} of {len(items)}" + (f", {left:.0f} s left" if left else ""))
        yield item


_AFTER_SECONDS = 2.0
_MIN_CPU_SECONDS = 1.0
"""On a busy machine everything waits: that is not announced as if it were our doing."""


@contextlib.contextmanager
def announcing(what: str, *, after_seconds: float = _AFTER_SECONDS) -> Iterator[None]:
    """Print one line if the block takes longer than a moment: `roundoff: recording step 0 ...`."""
    stream, done = sys.stderr, threading.Event()  # a replay discards what is printed meanwhile
    began = process_time()

    def announce() -> None:
        seconds = after_seconds
        while not done.wait(seconds):
            seconds = 0.25
            if process_time() - began >= min(_MIN_CPU_SECONDS, after_seconds):
                with contextlib.suppress(Exception):  # the stream may be closed, or anything that the script put there
                    say(f"{what} ...", stream=stream)
                return

    thread = threading.Thread(target=announce, name="roundoff-announcement", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
