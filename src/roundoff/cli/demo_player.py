"""The commands of the demo, run one by one as child processes and shown as a terminal would show them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task
from rich.text import Text

from roundoff.cli.console.screen import columns
from roundoff.errors import DemoError

TIMEOUT_SECONDS = 600.0
"""A command that takes longer than this hangs, and is ended."""
TERMINATE_SECONDS = 5.0
"""How long a command may take to end after SIGTERM, before it is killed."""


@contextlib.contextmanager
def running_command(words: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `roundoff WORDS` in a folder and a session of its own; when the block ends, all of it has ended."""
    with _holding_interrupts() as interrupts:
        process = _start(words, folder)
    # Reading its output waits for as long as it writes none: a command that hangs is ended from outside.
    watchdog = threading.Timer(TIMEOUT_SECONDS, _end, [process])
    watchdog.daemon = True
    try:
        watchdog.start()
        if interrupts:
            raise KeyboardInterrupt
        yield process
    finally:
        watchdog.cancel()
        _end(process)
        assert process.stdout is not None
        process.stdout.close()


def lines_of(process: subprocess.Popen[str], kept: list[str]) -> Iterator[str]:
    """Yield what a process prints, line by line as it comes, and keep it."""
    assert process.stdout is not None
    for line in process.stdout:
        kept.append(line.rstrip())
        yield kept[-1]


def _start(words: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    # Two threads on two busy cores can be thirty times slower than one.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "COLUMNS": str(columns())}
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.Popen(
        [sys.executable, "-m", "roundoff", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


@contextlib.contextmanager
def _holding_interrupts() -> Iterator[list[int]]:
    """Collect interrupts while the block runs: one in the middle of starting a process would lose that process."""
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process if it has not ended, and whatever it has started and left."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATE_SECONDS)
    _signal(process, signal.SIGKILL)
    process.wait(TERMINATE_SECONDS)


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to the session that a process leads, if any of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


SCRIPT = "digits.py"
PLANNED = "planned.toml"
PAGE = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One command of the story."""

    title: str
    words: tuple[str, ...]
    """Behind `roundoff`."""
    ends_with: int
    """The exit code that it must have for the story to go on."""
    seconds: float
    """How long it took the author, to estimate the time left."""
    num_paragraphs: int | None = None
    """How much of its output is shown; None is all of it."""


STORY = (
    Chapter(
        title=f"Train {SCRIPT} in fp32, watched. This is the reference.",
        words=("run", "--name", "fp32", SCRIPT, "fp32"),
        ends_with=0,
        seconds=5.0,
    ),
    Chapter(
        title="The same in half precision: it fails, the bad step is replayed op by op, and the op is named.",
        words=("run", "--name", "half", SCRIPT, "half"),
        ends_with=1,
        seconds=6.5,
    ),
    Chapter(
        title="The step was saved. Run it again in a new process, from the run folder and the model alone.",
        words=("replay", "runs/half", "--builder", f"{SCRIPT}:build"),
        ends_with=1,
        seconds=4.0,
    ),
    Chapter(
        title="Which layers can be fp16? Measure one step, propose a recipe, and compare it with fp32.",
        words=("plan", "--jobs", "0", "--steps", "60", "-o", PLANNED, SCRIPT),
        ends_with=0,
        seconds=6.5,
        num_paragraphs=3,
    ),
    Chapter(
        title="Train with the planned recipe.",
        words=("run", "--name", "planned", SCRIPT, PLANNED),
        ends_with=0,
        seconds=5.0,
    ),
    Chapter(
        title="Does it compute the same as fp32?",
        words=("compare", "runs/fp32", "runs/planned"),
        ends_with=0,
        seconds=3.0,
    ),
    Chapter(
        title="A report about the failed run, compared with the reference.",
        words=("report", "runs/half", "--against", "runs/fp32", "-o", PAGE),
        ends_with=0,
        seconds=3.5,
    ),
)


def seconds_left(story: Sequence[Chapter], *, num_done: int, elapsed: float) -> float:
    """Estimate how long the rest takes, from how long the first chapters took here.

    >>> round(seconds_left(STORY, num_done=0, elapsed=0.0))
    34
    >>> round(seconds_left(STORY, num_done=len(STORY), elapsed=50.0))
    0
    """
    done = sum(chapter.seconds for chapter in story[:num_done])
    left = sum(chapter.seconds for chapter in story[num_done:])
    return left * (elapsed / done if done else 1.0)


def first_paragraphs(lines: Iterable[str], num_paragraphs: int | None) -> Iterator[str]:
    """Yield the first paragraphs of an output as they come, and dots for the rest of it; None is all of it.

    >>> list(first_paragraphs(["verdict", "", "facts", "more", "", "table"], 2))
    ['verdict', '', 'facts', 'more', '...']
    """
    num_ended = 0
    for line in lines:
        is_shown = num_paragraphs is None or num_ended < num_paragraphs
        num_ended += not line
        if is_shown:
            yield "..." if num_ended == num_paragraphs else line


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedChapter:
    """What came of one chapter."""

    chapter: Chapter
    output: tuple[str, ...]
    seconds: float

    @property
    def command(self) -> str:
        """What a user would type."""
        return command_of(self.chapter)


class DemoPlayer:
    """Shows the story on stdout, with a bar and the time left under it on a terminal; `quiet` keeps stdout for JSON."""

    def __init__(self, folder: Path, story: Sequence[Chapter], *, quiet: bool) -> None:
        self._folder, self._story, self._quiet = folder, story, quiet
        self._console = Console(stderr=quiet)
        self._bar = _bar(self._console) if self._console.is_terminal and not self._console.is_dumb_terminal else None

    def say(self, text: str = "", *, style: str | None = None) -> None:
        """Show a line of the story."""
        if not self._quiet:
            # As a Text: a style that is given to print colours the bar below, too.
            self._console.print(Text(text, style=style or ""), soft_wrap=True)

    def play(self) -> list[PlayedChapter]:
        """Run every command, each when the one before has ended as it must.

        Raises:
            DemoError: one of them has not.
        """
        played: list[PlayedChapter] = []
        for number, chapter in enumerate(self._story):
            self._move_bar(played)
            self.say(f"{number + 1}. {chapter.title}", style="bold")
            self.say(f"$ {command_of(chapter)}", style="cyan")
            played.append(self._play(chapter))
            self.say()
        return played

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def _move_bar(self, played: Sequence[PlayedChapter]) -> None:
        if self._bar is None:
            return
        chapter = self._story[len(played)]
        left = seconds_left(
            self._story, num_done=len(played), elapsed=sum((each.seconds for each in played), start=0.0)
        )
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        self._bar.add_task(
            f"{len(played) + 1} of {len(self._story)}: {chapter.words[0]}",
            total=len(self._story),
            completed=len(played),
            left=left,
        )

    def _play(self, chapter: Chapter) -> PlayedChapter:
        began = time.monotonic()
        output: list[str] = []
        with running_command(chapter.words, self._folder) as process:
            for line in first_paragraphs(lines_of(process, output), chapter.num_paragraphs):
                self.say(line)
            code = process.wait(TIMEOUT_SECONDS)
        seconds = time.monotonic() - began
        if code != chapter.ends_with:
            raise DemoError.explain(
                f"`{command_of(chapter)}` ended with {code} after {seconds:.0f} s, not with {chapter.ends_with}.",
                why=f"its output ends with: {output[-1] if output else 'nothing'}",
                fix=f"run it again in {self._folder}, look at what it says, and tell us.",
            )
        return PlayedChapter(chapter=chapter, output=tuple(output), seconds=seconds)


def command_of(chapter: Chapter) -> str:
    """Return what a user would type.

    >>> from roundoff.cli.demo_player import STORY
    >>> command_of(STORY[0])
    'roundoff run --name fp32 digits.py fp32'
    """
    return shlex.join(["roundoff", *chapter.words])


class _TimeLeft(ProgressColumn):
    """What is being done, and about how long everything will still take, counted down."""

    def render(self, task: Task) -> Text:
        """Write it for this moment."""
        return Text(f"{task.description}, about {max(1.0, task.fields['left'] - (task.elapsed or 0.0)):.0f} s left")


def _bar(console: Console) -> Progress:
    return Progress(SpinnerColumn("line"), BarColumn(), _TimeLeft(), console=console, transient=True)
