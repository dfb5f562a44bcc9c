"""The result of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from roundoff.runs import JsonValue
from roundoff.train.objective import Score


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
