"""Targets that cannot teach: all the same, or the input itself."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from statistics import median

from roundoff.diagnose.batches import (
    ASKS_YES_OR_NO,
    CLASSIFIES,
    model_inputs,
    site_of,
    targets_of,
    training_epochs,
)
from roundoff.diagnose.flow import Flow
from roundoff.diagnose.layers import PRODUCTS
from roundoff.diagnose.wording import format_short
from roundoff.runs import BatchFacts, Finding, JsonValue, Metrics, Run, Severity, TensorFacts
from roundoff.runs.records.step_ops import ops_of
from roundoff.words import plural

# == Labels that have nothing to do with their inputs: one batch can be learned by heart, the data set cannot.

_MIN_TRAINED_STEPS = 100
_OF_CHANCE = 0.93
"""A loss that stays above this part of what knowing nothing gives has learned nothing of the data set."""
_OVERFITTED = 0.9
"""A loss on one batch that falls to this part of chance within a few steps shows that model and optimizer can learn."""
_TIMES_LESS = 3.0
"""So many times less than on one batch must the training have learned, in many more steps."""
_TIMES_LONGER = 3
_SQUARES = ("mse_loss", "MSELoss")


def independent_labels(run: Run) -> list[Finding]:
    """Find a training that stays at chance though the same optimizer learns any one batch by heart."""
    batches = [batch for batch in run.inputs(rank=0) if targets_of(batch)]
    chance = _chance(batches)
    losses = [metric for metric in run.metrics(rank=0) if metric.loss is not None and math.isfinite(metric.loss)]
    if chance is None or len(losses) < _MIN_TRAINED_STEPS:
        return []
    late = _median(losses[len(losses) // 2 :])
    if not _OF_CHANCE * chance < late < 1.5 * chance:
        return []
    for probe in run.probes():
        if probe.get("probe") == "overfit":
            tried = [loss for loss in _as_list(probe.get("losses")) if isinstance(loss, float)]
            if _can_learn(tried, chance=chance, late=late) and len(losses) >= _TIMES_LONGER * len(tried):
                return [_finding(chance, late, len(losses), tried)]
    return []


def _chance(batches: list[BatchFacts]) -> float | None:
    """Return the loss of a model that knows how often each label occurs and nothing else; None if that is not known."""
    counts: Counter[str] = Counter()
    variances: list[float] = []
    for batch in batches:
        settings, targets = batch.criterion_settings, targets_of(batch)
        if settings.get("reduction", "mean") != "mean" or settings.get("label_smoothing") or len(targets) != 1:
            return None
        if batch.criterion in CLASSIFIES:
            ignored = {"-100", str(settings.get("ignore_index"))}
            counts.update({key: num for key, num in targets[0].counts.items() if key not in ignored})
        elif batch.criterion in ASKS_YES_OR_NO and _is_yes_or_no(targets[0]):
            num_yes = round((targets[0].mean or 0.0) * targets[0].shape[0])
            counts.update({"1": num_yes, "0": targets[0].shape[0] - num_yes})
        elif batch.criterion in _SQUARES and targets[0].std:
            variances.append(targets[0].std ** 2)
        else:
            return None
    if variances:
        return None if counts else statistics.mean(variances)
    shares = [num / counts.total() for num in counts.values() if num]
    return -sum(share * math.log(share) for share in shares) if len(shares) > 1 else None


def _is_yes_or_no(target: TensorFacts) -> bool:
    """Say whether there is one answer per sample, 0 or 1: only those have this deviation."""
    if target.mean is None or target.std is None or math.prod(target.shape) != target.shape[0]:
        return False
    return math.isclose(target.std**2, target.mean * (1 - target.mean), rel_tol=1e-6, abs_tol=1e-9)


def _median(metrics: list[Metrics]) -> float:
    return statistics.median(metric.loss or 0.0 for metric in metrics)


def _as_list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _can_learn(tried: list[float], *, chance: float, late: float) -> bool:
    if len(tried) < 2 or min(tried) >= _OVERFITTED * min(chance, tried[0]):
        return False
    return chance - min(tried) > _TIMES_LESS * (chance - late)


def _finding(chance: float, late: float, num_steps: int, tried: list[float]) -> Finding:
    return Finding(
        rule="labels-independent",
        severity=Severity.ERROR,
        confidence=0.8,
        step=0,
        phase="forward",
        title="the labels have nothing to do with the inputs",
        why=f"after {num_steps} steps the loss is {format_short(late)}, and who knows only how often each label "
        "occurs gets "
        f"{format_short(chance)}; on one batch alone it falls from {format_short(tried[0])} to "
        f"{format_short(min(tried))} within "
        f"{len(tried)} steps, so the model and the optimizer can learn",
        fix="look at some samples with their labels: two files sorted differently, inputs shuffled without their "
        "labels, an index off by one",
        evidence=({"chance": chance, "loss": late, "overfit": [*tried]},),
    )


# == What becomes of labels in a recorded step: whether a layer learns from them, and what the scores are scores
# == of.

_LEARN = PRODUCTS | {"embedding", "_embedding_bag", "bmm", "baddbmm", "mkldnn_rnn_layer", "lstm", "gru"}
_CRITERIA = frozenset({"_log_softmax", "nll_loss_forward", "nll_loss2d_forward"})
_KEEP_THE_ORDER = frozenset({"div", "mul", "_to_copy", "clone", "copy"})
_JOIN = frozenset({"cat", "stack"})


def meets_weights(run: Run, rank: int, given: TensorFacts) -> bool:
    """Say whether a layer reads what becomes of an input; also where it is lost sight of.

    Labels that go past all layers and meet the scores right before the criterion, such as those of a margin, give the
    answer away to nobody.
    """
    flow = _flow(run, rank)
    number = int(given.hash, 16) if given.hash else None
    reached = [event for op in flow.ops if op.first.op == "input" for event in op.outputs if event.hash == number]
    seen: set[tuple[int, int]] = set()
    meets_criterion = False
    while reached:
        event = reached.pop()
        if (event.hash, event.num_elements) in seen:
            continue
        seen.add((event.hash, event.num_elements))
        for op in flow.readers_of(event):
            if op.bare in _LEARN:
                return True
            meets_criterion = meets_criterion or (op.bare in _CRITERIA and "float" in event.dtype)
            reached.extend(op.outputs)
    return not meets_criterion


def are_places_in_a_row(run: Run, rank: int) -> bool:
    """Say whether the scores of a criterion were put together from several tensors: then a class is a place in a row.

    So the right one among others may always be the first, as it is in contrastive losses.
    """
    flow = _flow(run, rank)
    for op in flow.ops:
        if op.bare == "_log_softmax" and op.inputs:
            maker = flow.maker_of(op.inputs[0])
            while maker is not None and maker.bare in _KEEP_THE_ORDER and maker.inputs:
                maker = flow.maker_of(maker.inputs[0])
            if maker is not None and maker.bare in _JOIN:
                return True
    return False


def _flow(run: Run, rank: int) -> Flow:
    return Flow(ops_of(run.iter_events(step=0, rank=rank, phase="forward")))


_MIN_LABELLED_STEPS = 10
"""So many steps with one class may be the beginning of sorted data, where nobody knows how long an epoch is."""
_NUM_BEFORE, _STANDS_OUT = 10, 4.0
"""A loss that is so many times the median of those before it has met something that they had not."""
_FEWEST_EQUAL = 3
_LEARNED = 0.2
"""A loss that has fallen to this part shows that the copy was found."""


def single_classes(run: Run) -> list[Finding]:
    """Find a training whose labels are all the same, over the whole data set and not only in one batch."""
    for rank in run.ranks:
        batches = [batch for batch in run.inputs(rank=rank) if targets_of(batch)]
        counts = _label_counts(batches)
        if len(counts) != 1 or not model_inputs(run, rank) or are_places_in_a_row(run, rank):
            continue  # several classes; no data at all; or the number of the right one among others
        if _covers_the_data(run, rank, batches, next(iter(counts))) and not _is_surprised(run, rank, batches):
            return [_single_class(batches, counts, rank)]
    return []


def leaking_labels(run: Run) -> list[Finding]:
    """Find targets that are an input of the model; silent where all of a sample is to be reconstructed."""
    for rank in run.ranks:
        pairs = [pair for batch in run.inputs(rank=rank) if (pair := _equal_pair(batch)) is not None]
        batches = [batch for batch in run.inputs(rank=rank) if targets_of(batch)]
        if len(pairs) < _FEWEST_EQUAL or len(pairs) < len(batches):
            continue
        given, target = pairs[0]
        if not meets_weights(run, rank, given):
            continue
        is_whole = math.prod(target.shape) > given.shape[0]
        if not is_whole or ("int" in target.dtype and _was_learned(run, rank)):
            return [_leak(given, target, batches[0].step, rank, len(pairs), is_whole=is_whole)]
    return []


def _label_counts(batches: list[BatchFacts]) -> Mapping[float, int]:
    """Return how often each label occurs, without those to be ignored; empty if these are no labels of classes."""
    counts: Counter[float] = Counter()
    for batch in batches:
        ignored = {-100.0, batch.criterion_settings.get("ignore_index")}
        for target in targets_of(batch):
            if "int" in target.dtype and (batch.criterion in CLASSIFIES or batch.criterion is None) and target.counts:
                counts.update({float(key): num for key, num in target.counts.items() if float(key) not in ignored})
            elif batch.criterion in ASKS_YES_OR_NO and target.min is not None:
                num = math.prod(target.shape)
                counts.update({target.min: num} if target.min == target.max else {0.0: num, 1.0: num})
            else:
                return {}
    return counts


def _covers_the_data(run: Run, rank: int, batches: list[BatchFacts], label: float) -> bool:
    """Say whether what was looked at stands for the whole data set, and not for the beginning of sorted data."""
    epochs = training_epochs(run, rank)
    if not epochs:
        return len(batches) >= _MIN_LABELLED_STEPS
    detail = epochs[0].detail
    if any(not array["std"] and array["mean"] == label for array in detail.get("content") or ()):
        return True
    seen = sum(epochs[0].first_step <= batch.step < epochs[0].end_step for batch in batches)
    if detail.get("sampler") != "SequentialSampler" and seen >= _MIN_LABELLED_STEPS:
        return True
    return 2 * seen > (detail.get("num_batches") or 2 * seen)


def _is_surprised(run: Run, rank: int, batches: list[BatchFacts]) -> bool:
    """Say whether a loss stood out after the steps that were looked at: another class came, which is rare."""
    losses = [m.loss for m in run.metrics(rank=rank) if m.loss is not None and m.step > batches[-1].step]
    windows = [(losses[place - _NUM_BEFORE : place], losses[place]) for place in range(_NUM_BEFORE, len(losses))]
    return any(loss > _STANDS_OUT * median(before) for before, loss in windows)


def _equal_pair(batch: BatchFacts) -> tuple[TensorFacts, TensorFacts] | None:
    """Return an input of a model and a target that hold the same numbers."""
    inputs = [tensor for tensor in batch.tensors if not tensor.is_target and len(tensor.shape) and tensor.std]
    for target in batch.targets:
        for given in inputs:
            if _is_to_a_model(given) and _is_same(given, target):
                return given, target
    return None


def _is_to_a_model(tensor: TensorFacts) -> bool:
    return site_of(tensor.place).endswith((">", ":"))


def _is_same(one: TensorFacts, other: TensorFacts) -> bool:
    """Say whether two tensors hold the same numbers, whatever their shape and dtype."""
    if math.prod(one.shape) != math.prod(other.shape):
        return False
    if one.dtype == other.dtype:
        return one.hash == other.hash
    return (one.min, one.max, one.mean, one.std) == (other.min, other.max, other.mean, other.std)


def _was_learned(run: Run, rank: int) -> bool:
    losses = [metric.loss for metric in run.metrics(rank=rank) if metric.loss is not None]
    return len(losses) > 1 and min(losses[len(losses) // 2 :]) < _LEARNED * losses[0]


def _single_class(batches: list[BatchFacts], counts: Mapping[float, int], rank: int) -> Finding:
    ((label, num),) = counts.items()
    classes = batches[0].num_classes
    of = f", though the model tells {classes} apart" if classes is not None and classes > 1 else ""
    return Finding(
        rule="single-class",
        severity=Severity.ERROR,
        confidence=0.9,
        step=batches[0].step,
        rank=rank,
        phase="forward",
        title="all labels are the same",
        why=f"all {num} labels of the {plural(len(batches), 'step')} that were looked at are "
        f"{format_short(label)}{of}: "
        "their entropy is 0, and there is nothing to learn from them",
        fix="look at where labels come from: a column of one value, a filter that leaves one class, a file name parsed "
        "wrongly, a loop variable that stays",
        evidence=({"label": label, "num_labels": num, "num_steps": len(batches)},),
    )


def _leak(given: TensorFacts, target: TensorFacts, step: int, rank: int, num: int, *, is_whole: bool) -> Finding:
    if is_whole:
        why = f"in all {plural(num, 'step')} that were looked at they hold the same ids: the model learns to copy"
        fix = "shift them: predict ids[:, 1:] from ids[:, :-1]"
    else:
        why = f"in all {plural(num, 'step')} that were looked at they hold the same numbers: the answer is given"
        fix = "take the target out of what the model is given"
    return Finding(
        rule="label-leak",
        severity=Severity.WARNING,
        confidence=0.8 if is_whole else 0.9,
        step=step,
        rank=rank,
        phase="forward",
        site=site_of(given.place),
        title=f"the target is the input {given.place}",
        why=why,
        fix=fix,
        evidence=({"input": given.place, "hash": given.hash, "shape": list(target.shape)},),
    )
