"""What the process of one training does: train, and return the numbers of its row."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  torch's optimizers import it when first used: here it is paid once for all rows

from roundoff.experiments.saved_memory import saved_bytes
from roundoff.precision import find_recipe
from roundoff.runs import Metrics
from roundoff.runs.lines import append_lines
from roundoff.train.config import TrainConfig
from roundoff.train.result import TrainResult
from roundoff.train.trainer import OnStep, train

_TOLD_BY_OTHER_COLUMNS = "the loss was not finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTask:
    """One training, as it is sent to its process."""

    config: TrainConfig
    recipe_file: Path | None = None
    """Where the recipe is, if it has no name."""
    metrics_file: Path | None = None
    """Where the metrics of every step go; what an earlier try left there goes."""


def train_row(task: RowTask) -> dict[str, Any]:
    """Train, and return the measured fields of a `Row`."""
    config = task.config
    if task.recipe_file is not None:
        config = replace(config, recipe=str(task.recipe_file))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        result = train(config, on_step=_begun(task.metrics_file))
    return {
        "top1": result.top1,
        "eval_loss": result.eval_loss,
        "steps": result.num_steps,
        "first_nonfinite_step": result.first_nonfinite_step,
        "ended_nonfinite": result.ended_nonfinite,
        "skipped": result.num_skipped,
        "saved_activation_bytes": _saved(config, result),
        "seconds": result.seconds,
        "note": "; ".join(_notes(result, [str(each.message) for each in warned])),
    }


def _begun(path: Path | None) -> OnStep | None:
    """Return what each step is told to, and begin anew."""
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return partial(_append, path)


def _append(path: Path, metrics: Metrics) -> None:
    append_lines(path, [metrics.to_text()])


def _saved(config: TrainConfig, result: TrainResult) -> int | None:
    if find_recipe(config.recipe).least_activation_bits and result.saved_activation_bytes is not None:
        return result.saved_activation_bytes
    return saved_bytes(config)


def _notes(result: TrainResult, warned: list[str]) -> list[str]:
    notes = [note for note in result.notes if not note.startswith(_TOLD_BY_OTHER_COLUMNS)]
    if result.ended_nonfinite:
        notes.insert(0, "ended NaN" if result.losses and result.losses[-1] != result.losses[-1] else "ended non-finite")
    # Of torch's warnings about itself a reader of the table learns nothing.
    return [*notes, *dict.fromkeys(text for text in warned if "recipe" in text)]
