"""What a training returns, writes and shows: its result, the run folder, TensorBoard, and lines on the terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from torch import nn

from roundoff.progress import ProgressBar
from roundoff.record.process_info import describe_process
from roundoff.report.tensorboard import TensorBoard, weights_and_gradients
from roundoff.runs import (
    Call,
    CallDetail,
    CallKind,
    JsonValue,
    Metrics,
    ModeDetail,
    RunWriter,
    SaveDetail,
    next_free_name,
)
from roundoff.train.config import TrainConfig
from roundoff.train.optimization import Score
from roundoff.train.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """The result of a training, over all ranks."""

    top1: float
    """Accuracy on the evaluation data, from 0 to 1."""
    top5: float
    """Share of samples whose target was among the five most likely."""
    eval_loss: float
    perplexity: float | None
    """For text, e to the power of `eval_loss`; None for images."""
    losses: tuple[float, ...]
    """The loss of every step of this run, averaged over the ranks."""
    scores: tuple[Score, ...]
    """The evaluation after every epoch."""
    first_step: int
    """0, or the step at which the training was resumed."""
    first_nonfinite_step: int | None
    """The first step whose loss was NaN or infinite."""
    num_nonfinite: int
    num_skipped: int
    """Steps that loss scaling skipped."""
    num_unreadable: int
    """How often an image could not be read."""
    seconds: float
    """Time spent training, without evaluation."""
    samples_per_second: float
    saved_activation_bytes: int | None
    """The size of the activations that one step saved, if the recipe compresses them."""
    folder: Path | None
    """The run folder."""
    notes: tuple[str, ...]
    """Remarks that matter for reading the numbers."""

    @property
    def num_steps(self) -> int:
        """The number of steps of this run."""
        return len(self.losses)

    @property
    def ended_nonfinite(self) -> bool:
        """Whether the last loss or the evaluation is NaN or infinite."""
        last = self.losses[-1] if self.losses else 0.0
        return not (math.isfinite(last) and math.isfinite(self.eval_loss))

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything but the loss of each step as JSON values."""
        return {
            "top1": self.top1,
            "top5": self.top5,
            "eval_loss": self.eval_loss,
            "perplexity": self.perplexity,
            "final_loss": self.losses[-1] if self.losses else None,
            "first_step": self.first_step,
            "steps": self.num_steps,
            "first_nonfinite_step": self.first_nonfinite_step,
            "nonfinite": self.num_nonfinite,
            "skipped": self.num_skipped,
            "unreadable": self.num_unreadable,
            "ended_nonfinite": self.ended_nonfinite,
            "seconds": self.seconds,
            "samples_per_second": self.samples_per_second,
            "saved_activation_bytes": self.saved_activation_bytes,
            "run": None if self.folder is None else str(self.folder),
            "notes": list(self.notes),
        }


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
        return f"perplexity {score.perplexity:.2f}  right {score.top1:.1%}".replace("%", " %")
    return f"top-1 {score.top1:.1%}  top-5 {score.top5:.1%}".replace("%", " %")


_FLUSH_SECONDS = 5.0


class RunLog:
    """Writes the metrics of one rank; those of the last step are held back because an evaluation may follow."""

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        self.folder = _folder(config, ranks)
        self._writer = _writer(self.folder, config, ranks) if self.folder is not None else None
        self._board = TensorBoard(config.tensorboard) if config.tensorboard and ranks.is_first else None
        self._last: Metrics | None = None
        self._began = self._flushed = time.monotonic()

    def step(self, metrics: Metrics) -> None:
        """Log the metrics of a step."""
        self._write_last()
        self._last = metrics
        if self._board is not None:
            self._board.metrics(metrics)
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def draw(self, step: int, model: nn.Module) -> None:
        """Log histograms of the present weights and gradients."""
        if self._board is not None:
            self._board.histograms(step, weights_and_gradients(model.named_parameters()))

    def log_evaluation(self, step: int, epoch: int, score: Score) -> None:
        """Log the evaluation after the last step."""
        if self._last is not None:
            self._last = replace(self._last, eval_loss=score.loss)
        self._call(step, "eval", ModeDetail(epoch=epoch, loss=score.loss, top1=score.top1, top5=score.top5))
        if self._board is not None:
            self._board.scalars(step, {"eval_loss": score.loss, "top1": score.top1, "top5": score.top5})

    def log_checkpoint(self, step: int, path: Path) -> None:
        """Log a checkpoint."""
        self._call(step, "save", SaveDetail(path=path.name))

    def flush(self) -> None:
        """Write everything but the last step to disk."""
        if self._writer is not None:
            self._writer.flush()
        self._flushed = time.monotonic()

    def finish(self, notes: Sequence[str]) -> None:
        """Write the last step and the notes."""
        self._write_last()
        if self._writer is not None:
            for note in notes:
                self._writer.note(note)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._write_last()
        if self._writer is not None:
            self._writer.close(status="finished" if kind is None else "failed")
        if self._board is not None:
            self._board.close()

    def _write_last(self) -> None:
        if self._writer is not None and self._last is not None:
            self._writer.write(self._last)
        self._last = None

    def _call(self, step: int, call: CallKind, detail: CallDetail) -> None:
        if self._writer is not None:
            now = time.monotonic() - self._began
            self._writer.write(Call(step=step, call=call, seconds=now, detail=detail))


def _folder(config: TrainConfig, ranks: Ranks) -> Path | None:
    """Return the run folder, the same on all ranks."""
    if config.runs is None:
        return None
    if config.name is not None:
        return config.runs / config.name
    folder = ranks.from_first(str(next_free_name(config.runs, "train")) if ranks.is_first else None)
    return Path(folder)


def _writer(folder: Path, config: TrainConfig, ranks: Ranks) -> RunWriter:
    info = describe_process(seed=config.seed, settings=config.to_object(), command=None)
    return RunWriter.create(folder, replace(info, recipe=config.recipe, ranks=ranks.num_ranks), rank=ranks.rank)
