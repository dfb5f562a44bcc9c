"""Compares two PyTorch models: whether they compute the same from the same weights, and which change moves a metric."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from roundoff.compare.models.recorded_step import (
    Inputs,
    Loss,
    MakeOptimizer,
    call_model,
    clone_tensors,
    copy_model,
    keeping_random_state,
    record_step,
)
from roundoff.compare.models.weight_transfer import WeightTransfer, transfer_weights
from roundoff.compare.runs.divergence import Divergence
from roundoff.compare.runs.run_comparison import RunComparison, compare_runs
from roundoff.errors import CompareError

Metric: TypeAlias = Callable[[Any, Any], float | Tensor]
"""From all outputs and all targets to a number."""
MetricFunctions: TypeAlias = Mapping[str, Metric | tuple[Metric, Metric]]
Loader: TypeAlias = Iterable[tuple[Inputs, Any]]
Change: TypeAlias = Literal["model", "weights", "data", "metric"]

_BY_ROUNDING = 1e-4
"""Results that differ by less of their size differ by rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """What one change makes of one metric, everything before it changed already."""

    metric: str
    change: Change
    before: float
    after: float

    @property
    def matters(self) -> bool:
        """Whether the result is another one, beyond rounding."""
        if math.isnan(self.before) or math.isnan(self.after):
            return math.isnan(self.before) != math.isnan(self.after)
        return not math.isclose(self.before, self.after, rel_tol=_BY_ROUNDING, abs_tol=1e-12)


def walk_metrics(
    metrics: MetricFunctions, loaders: tuple[Loader, Loader], *, models: list[tuple[Change | None, nn.Module]]
) -> tuple[MetricChange, ...]:
    """Measure every metric on the way from the reference to the candidate.

    Args:
        metrics: each a function of all outputs and all targets; or two, the reference's and the candidate's.
        loaders: the reference's batches (inputs, targets), and the candidate's.
        models: the reference's model, then what each change makes of it; evaluated in eval mode.
    """
    last = models[-1][1]
    collected = [(change, _collect_outputs(model, loaders[0], place=0)) for change, model in models]
    collected.append(("data", _collect_outputs(last, loaders[1], place=1)))
    found = []
    for name, given in metrics.items():
        reference, candidate = given if isinstance(given, tuple) else (given, given)
        values = [(change, _number(reference, results)) for change, results in collected]
        values.append(("metric", _number(candidate, collected[-1][1])))
        for (_, before), (change, after) in itertools.pairwise(values):
            assert change is not None, "the reference comes first and alone"
            found.append(MetricChange(metric=name, change=change, before=before, after=after))
    return tuple(found)


def _collect_outputs(model: nn.Module, loader: Loader, *, place: int) -> tuple[Any, Any]:
    """Return all outputs and all targets, tensors joined along their first axis."""
    outputs, targets = [], []
    with keeping_random_state(), torch.no_grad():
        model.eval()
        for batch in loader:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise CompareError.explain(
                    f"The {('reference', 'candidate')[place]}'s data yields no pairs (inputs, targets).",
                    why=f"one of its batches is a {type(batch).__name__}.",
                    fix="hand over an iterable of pairs.",
                )
            outputs.append(call_model(model, clone_tensors(batch[0])))
            targets.append(batch[1])
    return _join_outputs(outputs), _join_outputs(targets)


def _join_outputs(parts: list[Any]) -> Any:
    return torch.cat(parts) if parts and all(isinstance(part, Tensor) and part.dim() for part in parts) else parts


def _number(metric: Metric, results: tuple[Any, Any]) -> float:
    return float(metric(*results))


T = TypeVar("T")

_OUR_LINES = "compare/models/recorded_step.py"
"""Where models are called here; a line of that says nothing about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """How two models differ when they start from the same weights."""

    transfer: WeightTransfer
    """Which parameters lined up, and which did not."""
    step: RunComparison
    """Forward, backward and one optimizer step, op by op."""
    losses: tuple[float | None, float | None]
    """Of the reference and of the candidate."""
    metrics: tuple[MetricChange, ...]
    """What each change makes of each metric; empty where none was given."""

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
    metrics: MetricFunctions | None = None,
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
    losses, optimizers = _as_pair(loss), _as_pair(optimizer or _sgd)
    reference_copy, candidate_copy = copy_model(reference, name="reference"), copy_model(candidate, name="candidate")
    moved = transfer_weights(reference_copy, candidate_copy, name_map=name_map)
    with keeping_random_state():
        changes: tuple[MetricChange, ...] = ()
        if metrics and data is not None:
            changes = _walk_with_copies(
                reference_copy, candidate_copy, candidate if moved.changed else None, metrics=metrics, data=data
            )
            _copy_modes(reference, reference_copy)
            _copy_modes(candidate, candidate_copy)
        with tempfile.TemporaryDirectory(prefix="roundoff-") as folder:
            runs = [
                record_step(
                    (reference_copy, candidate_copy)[side],
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


def _walk_with_copies(
    reference: nn.Module,
    candidate: nn.Module,
    untouched: nn.Module | None,
    *,
    metrics: MetricFunctions,
    data: tuple[Loader, Loader],
) -> tuple[MetricChange, ...]:
    """Measure the metrics; a candidate whose own weights are others is measured with them, too."""
    own = [("weights", copy_model(untouched, name="candidate"))] if untouched is not None else []
    return walk_metrics(metrics, data, models=[(None, reference), ("model", candidate), *own])  # type: ignore[list-item]


def _copy_modes(source: nn.Module, target: nn.Module) -> None:
    for reference, candidate in zip(source.modules(), target.modules(), strict=True):
        candidate.training = reference.training


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def _as_pair(value: T | tuple[T, T]) -> tuple[T, T]:
    return value if isinstance(value, tuple) else (value, value)


def _check(targets: Any, loss: Any, metrics: MetricFunctions | None, data: tuple[Loader, Loader] | None) -> None:
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


def _of_parameters(moved: WeightTransfer) -> list[str]:
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
