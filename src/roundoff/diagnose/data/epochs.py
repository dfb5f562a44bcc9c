"""How samples are drawn: some again and again within one epoch, or all in the same order in every epoch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

from roundoff.diagnose.batches import Epoch, first_input, sample_hashes, training_epochs
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Run, Severity, TensorFacts
from roundoff.words import plural

# == Data sets that change under the training: a transform writes into what it was given.


def mutated_datasets(run: Run) -> list[Finding]:
    """Find a data set whose arrays are other numbers in the same memory whenever an epoch begins."""
    for rank in run.ranks:
        epochs = training_epochs(run, rank)
        for one, other in itertools.pairwise(epochs):
            for name, before in _arrays(one).items():
                after = _arrays(other).get(name)
                if after is not None and _is_edited(before, after):
                    return [_finding(name, before, after, other.first_step, rank, len(epochs))]
    return []


def _arrays(epoch: Epoch) -> dict[str, Mapping[str, Any]]:
    return {entry["name"]: entry for entry in epoch.detail.get("content") or ()}


def _is_edited(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Say whether numbers were changed in place; a cache that was empty and an order that was shuffled are none."""
    if before["hash"] == after["hash"] or before.get("address") != after.get("address"):
        return False
    was_empty = not before["mean"] and not before["std"]
    is_shuffled = _is_close(before["mean"], after["mean"]) and _is_close(before["std"], after["std"])
    return not was_empty and not is_shuffled


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * (abs(one) + abs(other))


def _finding(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], step: int, rank: int, num_epochs: int
) -> Finding:
    what = [f"{key} {format_short(before[key])} became {format_short(after[key])}" for key in ("mean", "std")]
    return Finding(
        rule="dataset-mutated",
        severity=Severity.ERROR,
        confidence=0.9 if num_epochs > 2 else 0.8,
        step=step,
        rank=rank,
        title=f"the data set changes while it is read ({name})",
        why=f"when the next epoch began with step {step}, the same memory held other numbers: {', '.join(what)}; "
        "whoever reads a sample writes into the data set, and the next epoch trains on something else",
        fix="work on a copy: x = x.clone() (or x.copy()) first in __getitem__ and in transforms, and x = x - mean "
        "instead of x -= mean",
        evidence=({"name": name, "before": dict(before), "after": dict(after)},),
    )


_SHARE = 0.1
_FEWEST = 4
_SMALLEST_SAMPLE = 8
"""Samples of fewer numbers may well be equal by nature."""
_FEWEST_PAIRS = 3


def duplicate_samples(run: Run) -> list[Finding]:
    """Find samples that come several times within an epoch, though their sampler does not say that they may."""
    for rank in run.ranks:
        given = first_input(run, rank)
        if given is None or _numbers_in_sample(given[1][0][1]) < _SMALLEST_SAMPLE:
            continue
        for epoch in training_epochs(run, rank):
            if epoch.detail.get("replacement") or epoch.detail.get("sampler") == "DistributedSampler":
                break
            hashes = sample_hashes(run, rank, given[0], epoch=epoch)
            again = len(hashes) - len(set(hashes))
            is_much = again >= max(_FEWEST, _SHARE * len(hashes)) and len(set(hashes)) > 1
            if is_much and not _are_some_chosen(hashes):
                return [_duplicates(run, epoch, given[0], hashes, again, rank)]
    return []


def _are_some_chosen(hashes: list[int]) -> bool:
    """Say whether most samples come once and a few of them many times: those of a rare class, put in several times.

    Samples that are drawn by accident come twice more often than three times and more.
    """
    counts = Counter(Counter(hashes).values())
    num_often = sum(num for times, num in counts.items() if times > 2)
    return counts[1] >= counts.total() / 2 and num_often > 2 * counts[2]


def repeated_orders(run: Run) -> list[Finding]:
    """Find a training that gets its batches in the same order in every epoch."""
    for rank in run.ranks:
        given = first_input(run, rank)
        if given is None:
            continue
        batches = {step: tensor.hash for step, tensor in given[1]}
        for batch in run.inputs(rank=rank):  # augmented inputs never repeat, but their labels do
            if len(batch.targets) == 1 and batch.step in batches and len(batch.targets[0].counts) != 1:
                batches[batch.step] = batch.targets[0].hash
        pairs = _pairs(training_epochs(run, rank), batches) or _pairs_by_period(batches)
        if len(pairs) >= _FEWEST_PAIRS and all(batches[one] == batches[other] for one, other in pairs):
            return [_not_shuffled(pairs, rank)]
    return []


def _numbers_in_sample(tensor: TensorFacts) -> int:
    count = 1
    for length in tensor.shape[1:]:
        count *= length
    return count


def _pairs(epochs: list[Epoch], batches: Mapping[int, str]) -> list[tuple[int, int]]:
    """Return the steps with the same place in the first and in a later epoch, of epochs of several batches."""
    if len(epochs) < 2 or epochs[0].end_step - epochs[0].first_step < 2:
        return []
    first = epochs[0]
    return [
        (first.first_step + step - epoch.first_step, step)
        for epoch in epochs[1:]
        for step in range(epoch.first_step, epoch.end_step)
        if step in batches and first.first_step + step - epoch.first_step in batches
    ]


def _pairs_by_period(batches: Mapping[int, str]) -> list[tuple[int, int]]:
    """Return the steps that lie one round apart, if the first batch comes again with others in between."""
    if not batches or len(set(batches.values())) < 2:
        return []
    first = min(batches)
    period = next((step - first for step in sorted(batches) if step > first and batches[step] == batches[first]), None)
    if period is None or period < 2:
        return []
    return [(step, step + period) for step in sorted(batches) if step + period in batches]


def _duplicates(run: Run, epoch: Epoch, place: str, hashes: list[int], again: int, rank: int) -> Finding:
    most = max(hashes.count(number) for number in set(hashes[:200]))
    first = next(
        (step for step in range(epoch.first_step, epoch.end_step) if _has_again(run, rank, place, epoch, step)),
        epoch.first_step,
    )
    return Finding(
        rule="duplicate-samples",
        severity=Severity.WARNING,
        confidence=0.8,
        step=first,
        rank=rank,
        title="samples come several times within an epoch",
        why=f"{again} of {len(hashes)} samples of the epoch that begins with step {epoch.first_step} had come before "
        f"in it, one of them {most} times; the sampler ({epoch.detail.get('sampler')}) does not draw with replacement",
        fix="look at the sampler: each index of the data set should come once in an epoch; if repetition is meant, "
        "draw with RandomSampler(replacement=True) or WeightedRandomSampler",
        evidence=({"num_samples": len(hashes), "num_again": again, "place": place},),
    )


def _has_again(run: Run, rank: int, place: str, epoch: Epoch, step: int) -> bool:
    """Say whether the samples up to a step of the epoch hold one twice."""
    part = Epoch(first_step=epoch.first_step, end_step=step + 1, detail=epoch.detail)
    hashes = sample_hashes(run, rank, place, epoch=part)
    return len(set(hashes)) < len(hashes)


def _not_shuffled(pairs: list[tuple[int, int]], rank: int) -> Finding:
    one, other = pairs[0]
    return Finding(
        rule="data-not-shuffled",
        severity=Severity.NOTE,
        confidence=0.9,
        step=other,
        rank=rank,
        title="the data come in the same order in every epoch",
        why=f"step {other} has the batch of step {one}, and so on: all {plural(len(pairs), 'pair')} of steps at the "
        "same place of their epochs that were looked at are equal",
        fix="DataLoader(..., shuffle=True), unless the order is meant",
        evidence=({"pairs": [[*pair] for pair in pairs[:10]]},),
    )
