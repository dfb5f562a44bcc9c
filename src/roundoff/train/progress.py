"""Shows the progress of a training: a progress bar on a terminal, and one line per epoch."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from roundoff.train.objective import Score

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class EpochLines:
    """Shows a training on standard error; with `shown` false it shows nothing."""

    def __init__(self, *, shown: bool, num_epochs: int, total_steps: int, is_text: bool) -> None:
        self._shown, self._num_epochs, self._is_text = shown, num_epochs, is_text
        is_live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._bar = _bar() if shown and is_live else None
        self._task: TaskID | None = self._bar.add_task("", total=total_steps, loss="") if self._bar else None
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def step(self, step: int, loss: float) -> None:
        """Move the bar."""
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=step + 1, loss=f"loss {loss:.3f}")

    def epoch(self, epoch: int, *, loss: float, score: Score, lr: float) -> None:
        """Write the line of a finished epoch, counted from 0."""
        if not self._shown:
            return
        seconds = time.monotonic() - self._began
        self.say(
            f"epoch {epoch + 1:>{len(str(self._num_epochs))}}/{self._num_epochs}  loss {loss:.4f}  "
            f"{score_text(score, is_text=self._is_text)}  lr {lr:.3g}  {seconds:.1f} s"
        )

    def say(self, text: str) -> None:
        """Write a line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(text, highlight=False)
        elif self._shown:
            print(text, file=sys.stderr, flush=True)


def score_text(score: Score, *, is_text: bool) -> str:
    """Format a score.

    >>> score_text(Score(top1=0.972, top5=1.0, loss=0.1, num_places=360), is_text=False)
    'top-1 97.2 %  top-5 100.0 %'
    """
    if is_text:
        from math import exp

        perplexity = exp(score.loss) if score.loss < 700 else float("inf")
        return f"perplexity {perplexity:.2f}  right {score.top1:.1%}".replace("%", " %")
    return f"top-1 {score.top1:.1%}  top-5 {score.top5:.1%}".replace("%", " %")


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
