"""What the process of one row does: train, and return the numbers of the row."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from roundoff.precision import find_recipe
from roundoff.precision.activations import UNCOMPRESSED, ActivationSettings, compress_activations
from roundoff.runs.files.lines import append_lines
from roundoff.torch_private import load_compiler
from roundoff.train.config import TrainConfig
from roundoff.train.data import Batch
from roundoff.train.ranks import joined_ranks, place_here
from roundoff.train.run_log import TrainResult
from roundoff.train.trainer import OnStep, Trainer, train

load_compiler()  # torch's optimizers do so when first used: here it is paid once for all rows


def measure_saved_bytes(config: TrainConfig) -> int | None:
    """Return what the forward pass of the first batch saves for its backward pass, without parameters and buffers.

    Runs that forward pass in this process, which costs about one step; None for several ranks.
    """
    if config.num_ranks > 1:
        return None
    alone = replace(config, runs=None, resume=None, workers=0)
    with joined_ranks(alone, place_here(alone)) as ranks:
        training = Trainer(alone, ranks)
        training.sampler.begin(epoch=0, first_step=0)
        batches: Iterator[Batch] = iter(training.batches)
        batch = next(batches).to(ranks.device)
        training.model.train()
        with compress_activations(training.model, ActivationSettings(bits=UNCOMPRESSED)) as seen:
            training.model(batch.inputs)
            report = seen.report()
    return report.bytes_before


_IN_OTHER_COLUMNS = "the loss was not finite"


def train_row(config: TrainConfig, *, metrics_file: Path | None = None) -> dict[str, Any]:
    """Train, write the metrics of every step to a new file, and return the measured fields of a `SweepRow`."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        result = train(config, on_step=_start_metrics_file(metrics_file))
    return {
        "top1": result.top1,
        "eval_loss": result.eval_loss,
        "steps": result.num_steps,
        "first_nonfinite_step": result.first_nonfinite_step,
        "ended_nonfinite": result.ended_nonfinite,
        "skipped": result.num_skipped,
        "saved_activation_bytes": _saved_activation_bytes(config, result),
        "seconds": result.seconds,
        "note": "; ".join(_notes(result, [str(each.message) for each in warned])),
    }


def _start_metrics_file(path: Path | None) -> OnStep | None:
    """Return the callback that writes the metrics of each step to a new file."""
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return lambda metrics: append_lines(path, [metrics.to_text()])


def _saved_activation_bytes(config: TrainConfig, result: TrainResult) -> int | None:
    if find_recipe(config.recipe).least_activation_bits and result.saved_activation_bytes is not None:
        return result.saved_activation_bytes
    return measure_saved_bytes(config)


def _notes(result: TrainResult, warned: list[str]) -> list[str]:
    notes = [note for note in result.notes if not note.startswith(_IN_OTHER_COLUMNS)]
    if result.ended_nonfinite:
        notes.insert(0, "ended NaN" if result.losses and result.losses[-1] != result.losses[-1] else "ended non-finite")
    # Torch's warnings about itself do not help the reader of the table.
    return [*notes, *dict.fromkeys(text for text in warned if "recipe" in text)]
