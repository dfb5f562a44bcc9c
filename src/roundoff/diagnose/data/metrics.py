"""Metrics that do not measure what they seem to: thresholds, axes, shapes, ignored labels, pairs of the evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import CLASSIFIES
from roundoff.diagnose.rule import Code, FaultEffect, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import EvalMatchProbe, Finding, MetricProbe, ModuleFacts, Run
from roundoff.words import plural

_MIN_IGNORED = 0.02
"""The share of ignored targets that matters."""
_MIN_SAMPLES = 30
_MUCH_BETTER, _GOOD = 0.25, 0.7
"""By how much more choices must be right with other pairs, and how many then."""
_SQUASHES = frozenset({"sigmoid", "softmax", "log_softmax", "logsigmoid", "sigmoid_", "exp", "tanh"})
_DEPENDS_ON_MODE = ("Dropout", "BatchNorm", "RReLU")

_seen_metrics = needs.probe(MetricProbe, missing="the loop computed no metric from a model's outputs with torch")


@dataclass(frozen=True, slots=True)
class _Criterion:
    """What the training's loss functions are."""

    names: frozenset[str]
    num_classes: frozenset[int]
    ignored: frozenset[str]


def _criterion(run: Run, rank: int) -> _Criterion:
    batches, calls = run.inputs(rank=rank), run.criteria(rank=rank)
    names = {batch.criterion for batch in batches if batch.criterion} | {call.function for call in calls}
    classes = {batch.num_classes for batch in batches if batch.num_classes}
    settings = [batch.criterion_settings for batch in batches] + [call.settings for call in calls]
    ignored = {str(each["ignore_index"]) for each in settings if isinstance(each.get("ignore_index"), int)}
    return _Criterion(frozenset(names), frozenset(classes), frozenset(ignored))


def _lines(run: Run, kind: str) -> Iterator[MetricProbe]:
    return (probe for probe in run.probes(MetricProbe) if probe.kind == kind)


@rule(
    Code(
        name="metric-threshold",
        means="Outputs are turned into yes or no by a threshold that belongs to another kind of number: 0.5 is the "
        "middle of probabilities, 0 that of logits. The metric counts another decision than the one that was trained.",
        fix="Compare `torch.sigmoid(logits)` with 0.5, or the logits with 0.",
    ),
    order=1411,
    checks="thresholds that outputs are compared with, against the loss they are trained by",
    needs=[_seen_metrics],
)
@on_first_rank
def wrong_thresholds(run: Run, rank: int) -> Finding | None:
    """Find logits of a binary cross-entropy compared with 0.5, and probabilities compared with 0."""
    names = _criterion(run, rank).names
    takes_logits = bool(names & {"binary_cross_entropy_with_logits", "BCEWithLogitsLoss"})
    takes_probabilities = bool(names & {"binary_cross_entropy", "BCELoss"}) and not takes_logits
    for line in _lines(run, "threshold"):
        if line.min is None or line.max is None or _SQUASHES & set(line.functions):
            continue
        of_logits = takes_logits and line.threshold == 0.5 and (line.min < 0 or line.max > 1)
        of_probabilities = takes_probabilities and line.threshold == 0.0 and 0 < line.min <= line.max <= 1
        if not (of_logits or of_probabilities):
            continue
        kind = "logits" if of_logits else "probabilities"
        return warning(
            rule="metric-threshold",
            confidence=0.93,
            step=line.step,
            rank=rank,
            phase="eval",
            source=line.source,
            title=f"the metric compares {kind} with {line.threshold:g}",
            why=f"the outputs that meet the threshold {line.threshold:g} lie between {format_short(line.min)} and "
            f"{format_short(line.max)}, and the loss takes them for {kind}; "
            + (
                "0.5 is the middle of probabilities: as a logit it stands for a probability of 0.62, so what lies "
                "between is counted as no"
                if of_logits
                else "all of them are above it, so every answer is yes"
            ),
            fix="compare torch.sigmoid(logits) with 0.5, or the logits with 0" if of_logits else "compare with 0.5",
            evidence=({"threshold": line.threshold, "min": line.min, "max": line.max},),
        )
    return None


@rule(
    Code(
        name="metric-axis",
        means="The metric takes the largest output along another axis than that of the classes: it chooses a sample or "
        "a place for each class, not a class for each sample.",
        fix="Take `argmax` over the axis of the classes, the one that the loss uses: `dim=1`, or the last.",
    ),
    order=1412,
    checks="the axis along which the largest output is chosen",
    needs=[_seen_metrics],
)
@on_first_rank
def wrong_axes(run: Run, rank: int) -> Finding | None:
    """Find a choice along an axis that has not as many places as there are classes, where another axis has."""
    found = _criterion(run, rank)
    if not found.names & set(CLASSIFIES) or len(found.num_classes) != 1:
        return None
    (classes,) = found.num_classes
    for line in _lines(run, "choice"):
        fitting = [axis for axis, size in enumerate(line.shape) if size == classes]
        if line.axis is None or line.axis in fitting or len(fitting) != 1 or len(line.functions) > 1:
            continue
        return warning(
            rule="metric-axis",
            confidence=0.93,
            step=line.step,
            rank=rank,
            phase="eval",
            source=line.source,
            title=f"the metric chooses along axis {line.axis} instead of among the {classes} classes",
            why=f"the outputs have shape {line.shape}, and the loss has {classes} classes: they are along axis "
            f"{fitting[0]}; the largest is taken along axis {line.axis}, of size {line.shape[line.axis]}",
            fix=f"use argmax(dim={fitting[0]})",
            evidence=({"shape": list(line.shape), "axis": line.axis, "classes": classes},),
        )
    return None


@rule(
    Code(
        name="metric-broadcast",
        means="Predictions and targets have different shapes, and the metric stretches both: it compares every "
        "prediction with the targets of all samples.",
        fix="Give both the same shape: squeeze the predictions, or unsqueeze the targets.",
    ),
    order=1413,
    checks="shapes of predictions and targets in metrics",
    needs=[_seen_metrics],
)
@on_first_rank
def broadcast_metrics(run: Run, rank: int) -> Finding | None:
    """Find a comparison or difference of (N, 1) with (N,), outside of the training's own loss."""
    for line in (*_lines(run, "match"), *_lines(run, "error"), *_lines(run, "loss")):
        short, long = sorted((line.shape, line.other_shape), key=len)
        if not line.num_calls or len(short) != 1 or len(long) != 2 or long[1] != 1 or short[0] < 2:
            continue
        return warning(
            rule="metric-broadcast",
            confidence=0.95,
            step=line.step,
            rank=rank,
            phase="eval",
            source=line.source,
            title="the metric compares every prediction with the targets of all samples",
            why=f"predictions of shape {line.shape} meet targets of shape {line.other_shape}: they broadcast to "
            f"({long[0]}, {short[0]}), {prod((long[0], short[0]))} comparisons instead of {long[0]}",
            fix="give both the same shape: predictions.squeeze(-1), or targets.squeeze(-1)",
            evidence=({"shape": list(line.shape), "target": list(line.other_shape)},),
        )
    return None


@rule(
    Code(
        name="metric-ignored-labels",
        means="The metric counts targets that the loss ignores: padding, or places without a label. Its value depends "
        "on how much padding there is.",
        fix="Leave them out: `mask = targets != ignore_index`, then compare `predictions[mask]` with `targets[mask]`.",
    ),
    order=1414,
    checks="ignored targets in metrics",
    needs=[_seen_metrics],
)
@on_first_rank
def counted_ignored_labels(run: Run, rank: int) -> Finding | None:
    """Find an average over all matches, without any mask, whose targets include the index that the loss ignores."""
    ignored = _criterion(run, rank).ignored
    for line in _lines(run, "match"):
        total = sum(line.counts.values())
        for value in ignored & set(line.counts):
            share = line.counts[value] / total
            if not line.counts_all or share < _MIN_IGNORED:
                continue
            return warning(
                rule="metric-ignored-labels",
                confidence=0.9,
                step=line.step,
                rank=rank,
                phase="eval",
                source=line.source,
                title=f"the metric counts targets of {value}, which the loss ignores",
                why=f"{share:.0%} of the {total} targets that predictions are compared with are {value}, the loss's "
                "ignore_index; matches are averaged over all of them, and no mask leaves these out",
                fix=f"compare where the target is not {value} only: mask = targets != {value}",
                evidence=({"ignored": int(value), "share": share},),
            )
    return None


@rule(
    Code(
        name="eval-in-train-mode",
        means="The model is evaluated in training mode: dropout drops, and batch norm uses the statistics of the "
        "evaluated batch. The metric depends on chance and on the size of the batch.",
        fix="Call `model.eval()` before the evaluation, and `model.train()` after it.",
        leads_to=(FaultEffect.BREAKS_EVALUATION,),
    ),
    order=1415,
    checks="the mode of models whose outputs go into metrics",
    needs=[_seen_metrics],
)
@on_first_rank
def evaluations_in_train_mode(run: Run, rank: int) -> Finding | None:
    """Find metrics without gradients whose outputs all come from training mode, in a run that never calls eval()."""
    if any(call.call == "eval" for call in run.calls(rank=rank)):
        return None
    lines = [line for kind in ("match", "error", "loss") for line in _lines(run, kind) if line.num_calls]
    layers = _layers_with_a_mode(run, rank)
    if not lines or not layers or any(line.num_training < line.num_calls for line in lines):
        return None
    first, count = lines[0], sum(line.num_calls for line in lines)
    return warning(
        rule="eval-in-train-mode",
        confidence=0.9,
        step=first.step,
        rank=rank,
        phase="eval",
        site=layers[0].site,
        source=first.source,
        title="the model is evaluated in training mode",
        why=f"{plural(count, 'call')} without gradients, whose outputs are compared with targets, ran with "
        f"training=True, and eval() is never called; {layers[0].site} ({layers[0].kind}) behaves differently then",
        fix="call model.eval() before the evaluation, and model.train() after it",
        evidence=({"num_calls": count, "site": layers[0].site},),
    )


def _layers_with_a_mode(run: Run, rank: int) -> Sequence[ModuleFacts]:
    modules = [module for look in run.structures(rank=rank) for module in look.modules]
    return [m for m in modules if any(kind in m.kind for kind in _DEPENDS_ON_MODE) and m.settings.get("p") != 0]


@rule(
    Code(
        name="predictions-misaligned",
        means="The metric compares predictions with the targets of other samples: their orders differ, as when a "
        "DataLoader that shuffles is gone through once for the predictions and once for the targets.",
        fix="Take inputs and targets from the same pass, or evaluate with `shuffle=False`.",
        detected="Predictions are right for the targets that came with their inputs, and not for those they meet.",
    ),
    Code(
        name="eval-classes-renamed",
        means="The classes of the evaluation have other numbers than those of the training: predictions are right up "
        "to their names, as when two folders are numbered each by itself.",
        fix="Build one mapping from class to number, from the training set, and use it for both.",
        detected="Predictions are right when classes are renumbered.",
        follows_from=("eval-input-differs", "predictions-misaligned"),
        leads_to=(FaultEffect.BREAKS_EVALUATION,),
    ),
    order=1416,
    checks="whether predictions of the evaluation are right for other targets, or other numbers of classes",
    needs=[needs.probe(EvalMatchProbe, missing="the loop compared no predictions with class indices in torch")],
)
@on_first_rank
def wrong_pairs(run: Run, rank: int) -> Finding | None:
    """Find choices that are wrong for the targets they met, and right for their own, or after renumbering."""
    for probe in run.probes(EvalMatchProbe):
        if probe.num_samples < _MIN_SAMPLES:
            continue
        if probe.own_share is not None and probe.own_share > max(_GOOD, probe.share + _MUCH_BETTER):
            return _misaligned_finding(probe, probe.own_share, rank)
        if probe.num_moved > 1 and probe.renamed_share > max(_GOOD, probe.share + _MUCH_BETTER):
            return _renamed_classes_finding(probe, rank)
    return None


def _misaligned_finding(probe: EvalMatchProbe, own_share: float, rank: int) -> Finding:
    return warning(
        rule="predictions-misaligned",
        confidence=0.97,
        step=probe.step,
        rank=rank,
        phase="eval",
        source=probe.source,
        title="the metric compares predictions with the targets of other samples",
        why=f"{probe.share:.0%} of {probe.num_samples} predictions match the targets they are compared with; "
        f"{own_share:.0%} match the targets that came out of the DataLoader with their inputs: both have another order",
        fix="collect predictions and targets in the same pass, or use shuffle=False for the evaluation",
        evidence=({"share": probe.share, "own_share": own_share},),
    )


def _renamed_classes_finding(probe: EvalMatchProbe, rank: int) -> Finding:
    moved = [f"{a} is {b}" for a, b in sorted(probe.names.items(), key=lambda item: int(item[0])) if int(a) != b]
    return warning(
        rule="eval-classes-renamed",
        confidence=0.93,
        step=probe.step,
        rank=rank,
        phase="eval",
        source=probe.source,
        title="predictions of the evaluation are right, but classes have other numbers",
        why=f"{probe.share:.0%} of {probe.num_samples} predictions match their targets; {probe.renamed_share:.0%} "
        f"would if classes were renumbered ({', '.join(moved[:4])}): targets of training and evaluation are numbered "
        "differently",
        fix="use one mapping from class to number for the training and the evaluation data",
        evidence=({"share": probe.share, "renamed_share": probe.renamed_share, "names": dict(probe.names)},),
    )
