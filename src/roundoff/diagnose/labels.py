"""Targets that cannot teach: all the same, or the input itself."""

from __future__ import annotations

import math
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
from roundoff.diagnose.label_flow import are_places_in_a_row, meets_weights
from roundoff.diagnose.numbers import plural, short
from roundoff.runs import BatchFacts, Finding, Run, Severity, TensorFacts

_FEWEST_STEPS = 10
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
        return len(batches) >= _FEWEST_STEPS
    detail = epochs[0].detail
    if any(not array["std"] and array["mean"] == label for array in detail.get("content") or ()):
        return True
    seen = sum(epochs[0].first_step <= batch.step < epochs[0].end_step for batch in batches)
    if detail.get("sampler") != "SequentialSampler" and seen >= _FEWEST_STEPS:
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
        why=f"all {num} labels of the {plural(len(batches), 'step')} that were looked at are {short(label)}{of}: "
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
