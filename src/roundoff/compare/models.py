"""Two PyTorch models: whether they compute the same from the same weights, and which module is the first not to."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from roundoff.compare.divergence import Divergence
from roundoff.compare.models_metrics import Loader, MetricChange, Metrics, walk_metrics
from roundoff.compare.models_step import Inputs, Loss, MakeOptimizer, copied, random_state_kept, recorded_step
from roundoff.compare.models_transfer import Transfer, transfer
from roundoff.compare.runs import RunComparison, compare_runs
from roundoff.errors import CompareError

T = TypeVar("T")

_OUR_LINES = "compare/models_step.py"
"""Where models are called here; a line of that says nothing about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """How two models differ when they start from the same weights."""

    transfer: Transfer
    """Which parameters lined up, and which did not."""
    step: RunComparison
    """Forward, backward and one optimizer step, op by op."""
    losses: tuple[float | None, float | None]
    """Of the reference and of the candidate."""
    metrics: tuple[MetricChange, ...]
    """What each change makes of each metric; empty where none was asked for."""

    @property
    def divergence(self) -> Divergence | None:
        """The first op that makes a difference which its format does not explain, or None."""
        return self.step.divergence

    @property
    def differs(self) -> bool:
        """Whether the models compute something else, or a metric comes out otherwise."""
        return self.divergence is not None or any(change.matters for change in self.metrics)

    @property
    def verdict(self) -> str:
        """What was found, in a few sentences."""
        return " ".join([_of_step(self), *_of_parameters(self.transfer), *_of_metrics(self.metrics)])

    def __str__(self) -> str:
        return self.verdict


def compare_models(
    reference: nn.Module,
    candidate: nn.Module,
    inputs: Inputs,
    *,
    targets: Any = None,
    loss: Loss | tuple[Loss, Loss] | None = None,
    optimizer: MakeOptimizer | tuple[MakeOptimizer, MakeOptimizer] | None = None,
    metrics: Metrics | None = None,
    data: tuple[Loader, Loader] | None = None,
    name_map: Mapping[str, str] | None = None,
) -> ModelComparison:
    """Take one step with both models from the same weights, and name the first op that makes a difference.

    Copies are compared: models, gradients, modes and random numbers stay as they are. Both copies draw the same random
    numbers.

    Args:
        reference: what is right.
        candidate: what is looked at; its copy gets the reference's weights, lined up by name, shape and order.
        inputs: a tensor, a tuple of arguments, or a dict of arguments by name.
        targets: handed to the loss after the output, if given.
        loss: from the output (and the targets) to a number; the mean square of all outputs by default.
        optimizer: from a list of parameters to an optimizer; `SGD(lr=0.01)` by default. Loss, optimizer and each metric
            may be two, the reference's and the candidate's.
        metrics: functions from all outputs and all targets to a number, by name. They are measured on the way from the
            reference to the candidate: with the other model, its own weights, the other data, the other metric.
        data: the reference's batches (inputs, targets) and the candidate's, for the metrics.
        name_map: names in the reference to names in the candidate, for what does not line up by itself.
    """
    _check(targets, loss, metrics, data)
    losses, optimizers = _two(loss), _two(optimizer or _sgd)
    ours, theirs = copied(reference, name="reference"), copied(candidate, name="candidate")
    moved = transfer(ours, theirs, name_map=name_map)
    with random_state_kept():
        changes: tuple[MetricChange, ...] = ()
        if metrics and data is not None:
            changes = _walked(ours, theirs, candidate if moved.changed else None, metrics=metrics, data=data)
            _copy_modes(reference, ours)
            _copy_modes(candidate, theirs)
        with tempfile.TemporaryDirectory(prefix="roundoff-") as folder:
            runs = [
                recorded_step(
                    (ours, theirs)[side],
                    inputs,
                    to=Path(folder) / name,
                    targets=targets,
                    loss=losses[side],
                    make_optimizer=optimizers[side],
                    hidden=[names[side] for names in moved.transposed],
                )
                for side, name in enumerate(("reference", "candidate"))
            ]
            step = compare_runs(runs[0], runs[1], sites=moved.sites)
            values = [next((metrics.loss for metrics in run.metrics()), None) for run in runs]
    return ModelComparison(transfer=moved, step=step, losses=(values[0], values[1]), metrics=changes)


def _walked(
    ours: nn.Module, theirs: nn.Module, untouched: nn.Module | None, *, metrics: Metrics, data: tuple[Loader, Loader]
) -> tuple[MetricChange, ...]:
    """Measure the metrics; a candidate whose own weights are others is measured with them, too."""
    own = [("weights", copied(untouched, name="candidate"))] if untouched is not None else []
    return walk_metrics(metrics, data, models=[(None, ours), ("model", theirs), *own])  # type: ignore[list-item]


def _copy_modes(source: nn.Module, target: nn.Module) -> None:
    for ours, theirs in zip(source.modules(), target.modules(), strict=True):
        theirs.training = ours.training


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def _two(value: T | tuple[T, T]) -> tuple[T, T]:
    return value if isinstance(value, tuple) else (value, value)


def _check(targets: Any, loss: Any, metrics: Metrics | None, data: tuple[Loader, Loader] | None) -> None:
    if targets is not None and loss is None:
        raise CompareError.explain(
            "There are targets and no loss.", fix="say what they are for: loss=torch.nn.functional.cross_entropy"
        )
    if bool(metrics) != (data is not None):
        raise CompareError.explain(
            "Metrics and data belong together.",
            why="metrics are measured on the reference's data and on the candidate's.",
            fix="hand over both: metrics={'accuracy': ...}, data=(reference_loader, candidate_loader)",
        )


def _of_step(comparison: ModelComparison) -> str:
    found = comparison.divergence
    if found is None:
        same = comparison.step.is_identical
        return f"The models compute the same{', bit for bit' if same else ' within rounding'}, in forward and backward."
    is_told = found.source is not None and _OUR_LINES not in found.source
    where = f"{found.site} / {found.op}" + (f" ({found.source})" if is_told else "")
    amount = "" if found.is_only_in else f", by {100 * found.relative:.2g} %"
    only = f"; only the {found.is_only_in} has it" if found.is_only_in else ""
    return f"The models differ first in {found.cause}, at {where}{amount}{only}."


def _of_parameters(moved: Transfer) -> list[str]:
    found = []
    for side, names in (("reference", moved.only_reference), ("candidate", moved.only_candidate)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            found.append(f"Only the {side} has {', '.join(names[:3])}{more}.")
    return found


def _of_metrics(changes: tuple[MetricChange, ...]) -> list[str]:
    found = []
    for name in dict.fromkeys(change.metric for change in changes):
        of_metric = [change for change in changes if change.metric == name]
        blamed = [
            f"{change.change} ({change.before:.4g} to {change.after:.4g})" for change in of_metric if change.matters
        ]
        ends = f"{of_metric[0].before:.4g} against {of_metric[-1].after:.4g}"
        found.append(f"{name} is {ends}: {'changed by ' + ', '.join(blamed) if blamed else 'the same'}.")
    return found
