"""Shows the progress of a training: a progress bar on a terminal, and one line per epoch."""

from __future__ import annotations

import time

from roundoff.progress import ProgressBar
from roundoff.train.objective import Score


class EpochLines(ProgressBar):
    """Shows a training on stderr; with `shown` false it shows nothing."""

    def __init__(self, *, shown: bool, num_epochs: int, total_steps: int, is_text: bool) -> None:
        super().__init__("step", total=total_steps, shown=shown)
        self._num_epochs, self._is_text = num_epochs, is_text
        self._began = time.monotonic()

    def step(self, step: int, loss: float) -> None:
        """Move the bar."""
        self.move(step + 1, description=f"loss {loss:.3f}")

    def epoch(self, epoch: int, *, loss: float, score: Score, lr: float) -> None:
        """Print the line of a finished epoch, counted from 0."""
        seconds = time.monotonic() - self._began
        self.line(
            f"epoch {epoch + 1:>{len(str(self._num_epochs))}}/{self._num_epochs}  loss {loss:.4f}  "
            f"{score_text(score, is_text=self._is_text)}  lr {lr:.3g}  {seconds:.1f} s"
        )


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
