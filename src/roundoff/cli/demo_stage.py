"""Runs the commands of the demo one by one, and shows them as a terminal would."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task
from rich.text import Text

from roundoff.cli.demo_chapters import Chapter, first_paragraphs, seconds_left
from roundoff.cli.demo_process import PATIENCE_SECONDS, lines_of, started
from roundoff.errors import DemoError


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of one chapter."""

    chapter: Chapter
    output: tuple[str, ...]
    seconds: float

    @property
    def command(self) -> str:
        """What a user would type."""
        return command_of(self.chapter)


class Stage:
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

    def play(self) -> list[Played]:
        """Run every command, each when the one before has ended as it must.

        Raises:
            DemoError: one of them has not.
        """
        played: list[Played] = []
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

    def _move_bar(self, played: Sequence[Played]) -> None:
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

    def _play(self, chapter: Chapter) -> Played:
        began = time.monotonic()
        output: list[str] = []
        with started(chapter.words, self._folder) as process:
            for line in first_paragraphs(lines_of(process, output), chapter.num_paragraphs):
                self.say(line)
            code = process.wait(PATIENCE_SECONDS)
        seconds = time.monotonic() - began
        if code != chapter.ends_with:
            raise DemoError.explain(
                f"`{command_of(chapter)}` ended with {code} after {seconds:.0f} s, not with {chapter.ends_with}.",
                why=f"its output ends with: {output[-1] if output else 'nothing'}",
                fix=f"run it again in {self._folder}, look at what it says, and tell us.",
            )
        return Played(chapter=chapter, output=tuple(output), seconds=seconds)


def command_of(chapter: Chapter) -> str:
    """Return what a user would type.

    >>> from roundoff.cli.demo_chapters import STORY
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
