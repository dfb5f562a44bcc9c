"""Compares two PyTorch models: whether they compute the same with the same weights, and what changes a metric."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from roundoff.checkpoints.checkpoint import Entry, Role
from roundoff.checkpoints.pair.layer_groups import Axes
from roundoff.checkpoints.pair.pairing import TensorPair, pair_checkpoints
from roundoff.compare.models.model_accuracy import ModelAccuracy, is_compiled, measure_accuracy
from roundoff.compare.models.model_step import (
    Inputs,
    Loss,
    MakeOptimizer,
    call_model,
    clone_tensors,
    copy_model,
    device_of,
    keeping_random_state,
    record_step,
)
from roundoff.compare.runs.divergence import Divergence
from roundoff.compare.runs.run_comparison import RunComparison, compare_runs
from roundoff.compare.shown_comparison import ShownComparison
from roundoff.errors import CheckpointError, CompareError, first_line
from roundoff.words import join_names, plural

Tensors: TypeAlias = dict[str, tuple[Tensor, Role]]


Metric: TypeAlias = Callable[[Any, Any], float | Tensor]
"""From all outputs and all targets to a number."""
MetricFunctions: TypeAlias = Mapping[str, Metric | tuple[Metric, Metric]]
Loader: TypeAlias = Iterable[tuple[Inputs, Any]]
ChangedPart: TypeAlias = Literal["model", "weights", "data", "metric"]

_BY_ROUNDING = 1e-4
"""Relative differences below this are due to rounding."""


T = TypeVar("T")

_OUR_LINES = "compare/models/model_step.py"
"""The file that calls the models; its lines say nothing about them."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelComparison(ShownComparison):
    """How two models differ when they start from the same weights."""

    transfer: WeightTransfer
    """Which parameters lined up, and which did not."""
    step: RunComparison
    """Forward, backward and one optimizer step, op by op."""
    losses: tuple[float | None, float | None]
    """Of the reference and of the candidate."""
    metrics: tuple[MetricChange, ...]
    """The effect of each change on each metric; empty if no metric was given."""
    accuracy: ModelAccuracy | None = None
    """How far each is from fp64, as it really runs; None unless it was requested or a model is compiled."""

    @property
    def divergence(self) -> Divergence | None:
        """The first op that makes a difference which its format does not explain, or None."""
        return self.step.divergence

    @property
    def differs(self) -> bool:
        """Whether the models compute something else, or a metric differs."""
        return self.divergence is not None or any(change.matters for change in self.metrics)

    @property
    def verdict(self) -> str:
        """What was found, in a few sentences."""
        accuracy = [] if self.accuracy is None else [self.accuracy.verdict]
        return " ".join([_of_step(self), *_of_parameters(self.transfer), *_of_metrics(self.metrics), *accuracy])

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
    fp64: bool = False,
) -> ModelComparison:
    """Take one step with both models from the same weights, and name the first op that makes a difference.

    Copies are compared: models, gradients, modes and random numbers stay unchanged. Both copies draw the same random
    numbers.

    Args:
        reference: the model that is right.
        candidate: the model to check; its copy gets the reference's weights, paired by name, shape and order.
        inputs: a tensor, a tuple of arguments, or a dict of arguments by name.
        targets: passed to the loss after the output, if given.
        loss: from the output (and the targets) to a number; the mean square of all outputs by default.
        optimizer: from a list of parameters to an optimizer; `SGD(lr=0.01)` by default. Loss, optimizer and each metric
            may be a pair, the reference's and the candidate's.
        metrics: functions from all outputs and all targets to a number, by name. They are measured after each change
            from the reference to the candidate: the other model, its own weights, the other data, the other metric.
        data: the reference's batches (inputs, targets) and the candidate's, for the metrics.
        name_map: names in the reference to names in the candidate, for what cannot be paired automatically.
        fp64: also say which model is nearer to fp64, by its outputs and gradients. Always done for compiled models,
            whose ops cannot be seen: what is recorded is their eager code.
    """
    _check(targets, loss, metrics, data)
    losses, optimizers = (
        _as_pair(loss),
        _as_pair(optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.01))),
    )
    reference_copy, candidate_copy = copy_model(reference, name="reference"), copy_model(candidate, name="candidate")
    moved = transfer_weights(reference_copy, candidate_copy, name_map=name_map)
    with keeping_random_state():
        changes: tuple[MetricChange, ...] = ()
        if metrics and data is not None:
            models: list[tuple[ChangedPart | None, nn.Module]] = [(None, reference_copy), ("model", candidate_copy)]
            if moved.changed:
                models.append(("weights", copy_model(candidate, name="candidate")))
            changes = walk_metrics(metrics, data, models=models)
            _copy_modes(reference, reference_copy)
            _copy_modes(candidate, candidate_copy)
        accuracy = None
        if fp64 or is_compiled(reference) or is_compiled(candidate):
            pairs = [pair for pair in moved.pairs if pair not in moved.transposed]
            accuracy = measure_accuracy((reference_copy, candidate_copy), inputs, targets, losses, pairs=pairs)
        with tempfile.TemporaryDirectory(prefix="roundoff-") as folder:
            runs = [
                record_step(
                    (reference_copy, candidate_copy)[side],
                    inputs,
                    to=Path(folder) / name,
                    targets=targets,
                    loss=losses[side],
                    make_optimizer=optimizers[side],
                )
                for side, name in enumerate(("reference", "candidate"))
            ]
            # Gradients of transposed weights come from other products: all of their backward would look different.
            forward_only = tuple(frozenset(names[side] for names in moved.transposed) for side in (0, 1))
            step = compare_runs(runs[0], runs[1], sites=moved.sites, forward_only=(forward_only[0], forward_only[1]))
            values = [next((metrics.loss for metrics in run.metrics()), None) for run in runs]
    return ModelComparison(transfer=moved, step=step, losses=(values[0], values[1]), metrics=changes, accuracy=accuracy)


def _copy_modes(source: nn.Module, target: nn.Module) -> None:
    for reference, candidate in zip(source.modules(), target.modules(), strict=True):
        candidate.training = reference.training


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
            fix="pass both: metrics={'accuracy': ...}, data=(reference_loader, candidate_loader)",
        )


def _of_step(comparison: ModelComparison) -> str:
    found = comparison.divergence
    if found is None:
        same = comparison.step.is_identical
        return f"The models compute the same{', bit for bit' if same else ' within rounding'}, in forward and backward."
    has_source = found.source is not None and _OUR_LINES not in found.source
    where = f"{found.site} / {found.op}" + (f" ({found.source})" if has_source else "")
    amount = "" if found.is_only_in else f", by {100 * found.relative:.2g} %"
    only = f"; only the {found.is_only_in} has it" if found.is_only_in else ""
    return f"The models differ first in {found.cause}, at {where}{amount}{only}."


def _of_parameters(moved: WeightTransfer) -> list[str]:
    sides = ("reference", moved.only_reference), ("candidate", moved.only_candidate)
    turned = f", {len(moved.transposed)} of them turned" if moved.transposed else ""
    copied = f"The candidate's copy got {plural(len(moved.pairs), 'tensor')} of the reference{turned}."
    return [copied] * moved.changed + [
        f"Only the {side} has {join_names(names, at_most=3)}." for side, names in sides if names
    ]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """The effect of one change on one metric, after the changes before it."""

    metric: str
    change: ChangedPart
    before: float
    after: float

    @property
    def matters(self) -> bool:
        """Whether the result differs by more than rounding."""
        if math.isnan(self.before) or math.isnan(self.after):
            return math.isnan(self.before) != math.isnan(self.after)
        return not math.isclose(self.before, self.after, rel_tol=_BY_ROUNDING, abs_tol=1e-12)


def walk_metrics(
    metrics: MetricFunctions, loaders: tuple[Loader, Loader], *, models: list[tuple[ChangedPart | None, nn.Module]]
) -> tuple[MetricChange, ...]:
    """Measure every metric on the way from the reference to the candidate.

    Args:
        metrics: each a function of all outputs and all targets; or two, the reference's and the candidate's.
        loaders: the reference's batches (inputs, targets), and the candidate's.
        models: the reference's model, then the model after each change; evaluated in eval mode.
    """
    last = models[-1][1]
    collected = [(change, _collect_outputs(model, loaders[0], place=0)) for change, model in models]
    collected.append(("data", _collect_outputs(last, loaders[1], place=1)))
    found = []
    for name, given in metrics.items():
        reference, candidate = given if isinstance(given, tuple) else (given, given)
        values = [(change, float(reference(*results))) for change, results in collected]
        values.append(("metric", float(candidate(*collected[-1][1]))))
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
                    fix="pass an iterable of pairs.",
                )
            outputs.append(call_model(model, clone_tensors(batch[0], device_of(model))))
            targets.append(clone_tensors(batch[1], device_of(model)))
    return _join_outputs(outputs), _join_outputs(targets)


def _join_outputs(parts: list[Any]) -> Any:
    return torch.cat(parts) if parts and all(isinstance(part, Tensor) and part.dim() for part in parts) else parts


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTransfer:
    """Which weights of the reference were copied to which of the candidate."""

    pairs: tuple[tuple[str, str], ...]
    """Names in the reference and in the candidate."""
    transposed: tuple[tuple[str, str], ...]
    """The pairs whose axes had to change."""
    only_reference: tuple[str, ...]
    only_candidate: tuple[str, ...]
    changed: bool
    """Whether the candidate had other values before."""

    @property
    def sites(self) -> dict[str, str]:
        """The candidate's names of the reference's modules, where they differ; compiled ones run eagerly."""
        names = ([name.replace("_orig_mod.", "").rpartition(".")[0] for name in pair] for pair in self.pairs)
        modules = ((reference, candidate) for reference, candidate in names)
        return {first: second for first, second in modules if first and second and first != second}


def transfer_weights(
    reference: nn.Module, candidate: nn.Module, *, name_map: Mapping[str, str] | None = None
) -> WeightTransfer:
    """Overwrite the candidate's parameters and buffers with the reference's, as far as they line up."""
    reference_tensors, candidate_tensors = _tensors(reference), _tensors(candidate)
    try:
        found = pair_checkpoints(_entries(reference_tensors), _entries(candidate_tensors), name_map=name_map)
    except CheckpointError as error:
        raise CompareError.explain("The models do not line up by this map.", why=first_line(error)) from error
    axes = _axes(found.pairs, reference_tensors, candidate_tensors, candidate)
    changed = False
    with torch.no_grad():
        for each in found.pairs:
            target = candidate_tensors[each.candidate][0]
            value = _lay_out(reference_tensors[each.reference][0], target, axes[each.candidate])
            changed = changed or not torch.equal(target, value)
            target.copy_(value)
    return WeightTransfer(
        pairs=tuple((each.reference, each.candidate) for each in found.pairs),
        transposed=tuple((each.reference, each.candidate) for each in found.pairs if axes[each.candidate] is not None),
        only_reference=tuple(left.name for left in found.only_reference),
        only_candidate=tuple(left.name for left in found.only_candidate),
        changed=changed,
    )


def _tensors(model: nn.Module) -> Tensors:
    """Return a model's parameters and buffers by name, without buffers that are not saved: they are not learned."""
    kept = model.state_dict(keep_vars=True)
    parameters = {name: (x.detach(), Role.PARAMETER) for name, x in model.named_parameters()}
    buffers = {name: (x, Role.BUFFER) for name, x in model.named_buffers() if name in kept}
    return {**parameters, **buffers}


def _entries(tensors: Tensors) -> dict[str, Entry]:
    return {
        name: Entry(name=name, shape=tuple(x.shape), dtype=str(x.dtype).removeprefix("torch."), role=role)
        for name, (x, role) in tensors.items()
    }


def _axes(
    pairs: Sequence[TensorPair], reference_tensors: Tensors, candidate_tensors: Tensors, candidate: nn.Module
) -> dict[str, Axes | None]:
    """Return for each of the candidate's tensors the axes that lead to the reference's layout.

    A square weight fits with or without transposing: it is treated like the other weights of its kind of layer.
    """
    kinds = {each.candidate: _kind(candidate, each.candidate) for each in pairs}
    turned = {kinds[each.candidate]: each.axes for each in pairs if each.axes is not None}
    found = {each.candidate: each.axes for each in pairs}
    for each in pairs:
        shape, other = reference_tensors[each.reference][0].shape, candidate_tensors[each.candidate][0].shape
        axes = turned.get(kinds[each.candidate])
        if axes == (1, 0) and len(shape) == len(other) == 2 and shape[0] == shape[1]:
            found[each.candidate] = axes
    return found


def _kind(model: nn.Module, name: str) -> tuple[type[nn.Module], str]:
    """Return the class of the module that owns a tensor, and the tensor's name in it."""
    owner, _, leaf = name.rpartition(".")
    return type(model.get_submodule(owner)), leaf


def _lay_out(value: Tensor, target: Tensor, axes: Axes | None) -> Tensor:
    """Return the reference's tensor in the candidate's layout; the axes lead from there to the reference's."""
    value = value.to(dtype=target.dtype, device=target.device)
    if axes is None:
        return value.reshape(target.shape)
    moved = value.reshape([target.shape[axis] for axis in axes])
    return moved.permute(sorted(range(len(axes)), key=axes.__getitem__))
