"""What epochs should not be: samples repeated within one, the same order in each, or a dataset that changes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

from roundoff.diagnose import needs
from roundoff.diagnose.batches import Epoch, first_input, sample_hashes, training_epochs
from roundoff.diagnose.rule import Code, Rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import ArrayContent, Finding, Run, Severity, TensorFacts
from roundoff.runs.files.plain_json import object_of
from roundoff.words import plural

_MIN_REPEATED_SHARE = 0.1
_MIN_REPEATED = 4
_MIN_SAMPLE_SIZE = 8
"""Smaller samples may be equal by nature."""
_MIN_PAIRS = 3


def mutated_datasets(run: Run) -> list[Finding]:
    """Find a dataset whose arrays hold different values in the same memory when the next epoch begins."""
    for rank in run.ranks:
        epochs = training_epochs(run, rank)
        for one, other in itertools.pairwise(epochs):
            for name, before in _arrays(one).items():
                after = _arrays(other).get(name)
                if after is not None and _is_edited(before, after):
                    return [_mutated_finding(name, before, after, other.first_step, rank, len(epochs))]
    return []


def _arrays(epoch: Epoch) -> dict[str, ArrayContent]:
    return {entry.name: entry for entry in epoch.detail.content or ()}


def _is_edited(before: ArrayContent, after: ArrayContent) -> bool:
    """Say whether values were changed in place; filling an empty cache or shuffling does not count."""
    if before.hash == after.hash or before.address != after.address:
        return False
    was_empty = not before.mean and not before.std
    is_shuffled = _is_close(before.mean, after.mean) and _is_close(before.std, after.std)
    return not was_empty and not is_shuffled


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * (abs(one) + abs(other))


def _mutated_finding(
    name: str, before: ArrayContent, after: ArrayContent, step: int, rank: int, num_epochs: int
) -> Finding:
    what = [
        f"{name} {format_short(old)} became {format_short(new)}"
        for name, old, new in (("mean", before.mean, after.mean), ("std", before.std, after.std))
    ]
    return Finding(
        rule="dataset-mutated",
        severity=Severity.ERROR,
        confidence=0.9 if num_epochs > 2 else 0.8,
        step=step,
        rank=rank,
        title=f"the dataset changes while it is read ({name})",
        why=f"when the next epoch began in step {step}, the same memory held different values: {', '.join(what)}; code "
        "that reads a sample writes into the dataset, so the next epoch trains on different data",
        fix="work on a copy: x = x.clone() (or x.copy()) first in __getitem__ and in transforms, and x = x - mean "
        "instead of x -= mean",
        evidence=({"name": name, "before": object_of(before), "after": object_of(after)},),
    )


def duplicate_samples(run: Run) -> list[Finding]:
    """Find samples that occur several times within an epoch, although their sampler does not draw with replacement."""
    for rank in run.ranks:
        given = first_input(run, rank)
        if given is None or _sample_size(given[1][0][1]) < _MIN_SAMPLE_SIZE:
            continue
        for epoch in training_epochs(run, rank):
            if epoch.detail.replacement or epoch.detail.sampler == "DistributedSampler":
                break
            hashes = sample_hashes(run, rank, given[0], epoch=epoch)
            again = len(hashes) - len(set(hashes))
            is_much = again >= max(_MIN_REPEATED, _MIN_REPEATED_SHARE * len(hashes)) and len(set(hashes)) > 1
            if is_much and not _is_oversampling(hashes):
                return [_duplicates_finding(run, epoch, given[0], hashes, again, rank)]
    return []


def _is_oversampling(hashes: list[int]) -> bool:
    """Say whether most samples occur once and a few of them often: a rare class, oversampled on purpose.

    Among accidental repetitions, samples that occur twice outnumber those that occur more often.
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
        if len(pairs) >= _MIN_PAIRS and all(batches[one] == batches[other] for one, other in pairs):
            return [_same_order_finding(pairs, rank)]
    return []


def _sample_size(tensor: TensorFacts) -> int:
    count = 1
    for length in tensor.shape[1:]:
        count *= length
    return count


def _pairs(epochs: list[Epoch], batches: Mapping[int, str]) -> list[tuple[int, int]]:
    """Return pairs of steps at the same position in the first and in a later epoch, for epochs of several batches."""
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
    """Return pairs of steps that are one period apart, if the first batch occurs again after others."""
    if not batches or len(set(batches.values())) < 2:
        return []
    first = min(batches)
    period = next((step - first for step in sorted(batches) if step > first and batches[step] == batches[first]), None)
    if period is None or period < 2:
        return []
    return [(step, step + period) for step in sorted(batches) if step + period in batches]


def _duplicates_finding(run: Run, epoch: Epoch, place: str, hashes: list[int], again: int, rank: int) -> Finding:
    most = max(hashes.count(number) for number in set(hashes[:200]))
    first = next(
        (step for step in range(epoch.first_step, epoch.end_step) if _has_repetition(run, rank, place, epoch, step)),
        epoch.first_step,
    )
    return Finding(
        rule="duplicate-samples",
        severity=Severity.WARNING,
        confidence=0.8,
        step=first,
        rank=rank,
        title="samples are repeated within an epoch",
        why=f"{again} of {len(hashes)} samples in the epoch that begins with step {epoch.first_step} are repetitions, "
        f"one sample occurs {most} times; the sampler ({epoch.detail.sampler}) does not draw with replacement",
        fix="check the sampler: each index of the dataset should occur once per epoch; if repetition is intended, "
        "draw with RandomSampler(replacement=True) or WeightedRandomSampler",
        evidence=({"num_samples": len(hashes), "num_again": again, "place": place},),
    )


def _has_repetition(run: Run, rank: int, place: str, epoch: Epoch, step: int) -> bool:
    """Say whether a sample is repeated up to a step of the epoch."""
    part = Epoch(first_step=epoch.first_step, end_step=step + 1, detail=epoch.detail)
    hashes = sample_hashes(run, rank, place, epoch=part)
    return len(set(hashes)) < len(hashes)


def _same_order_finding(pairs: list[tuple[int, int]], rank: int) -> Finding:
    one, other = pairs[0]
    return Finding(
        rule="data-not-shuffled",
        severity=Severity.NOTE,
        confidence=0.9,
        step=other,
        rank=rank,
        title="the data has the same order in every epoch",
        why=f"step {other} has the batch of step {one}, and so on: all {plural(len(pairs), 'observed pair')} of steps "
        "at the same position of their epochs have equal batches",
        fix="DataLoader(..., shuffle=True), unless the order is intended",
        evidence=({"pairs": [[*pair] for pair in pairs[:10]]},),
    )


def _hashed_dataset(run: Run) -> str | None:
    epochs = [epoch for rank in run.ranks for epoch in training_epochs(run, rank)]
    return None if any(_arrays(epoch) for epoch in epochs) else "the arrays of the dataset could not be read"


def _hashed_samples(run: Run) -> str | None:
    places = [(rank, given[0]) for rank in run.ranks if (given := first_input(run, rank)) is not None]
    return None if any(sample_hashes(run, rank, place) for rank, place in places) else "no samples were hashed"


def _comparable_batches(run: Run) -> str | None:
    num_batches = max((len(given[1]) for rank in run.ranks if (given := first_input(run, rank)) is not None), default=0)
    return None if num_batches > _MIN_PAIRS else "too few batches were observed"


RULES = (
    Rule(
        order=1310,
        checks="datasets that change while they are read",
        find=mutated_datasets,
        needs=(needs.epochs(2), _hashed_dataset),
        codes=(
            Code(
                name="dataset-mutated",
                means="The dataset holds different numbers in the next epoch: code that reads a sample also writes "
                "into it.",
                fix="Work on copies: `x = x.clone()` first in `__getitem__`, and `x = x - mean` instead of `x -= "
                "mean`.",
            ),
        ),
    ),
    Rule(
        order=1320,
        checks="samples repeated within an epoch",
        find=duplicate_samples,
        needs=(needs.inputs, needs.epochs(1), _hashed_samples),
        codes=(
            Code(
                name="duplicate-samples",
                means="Samples occur several times within an epoch, although the sampler does not draw with "
                "replacement.",
                fix="Check the sampler: each index should occur once. If repetition is intended, use a sampler that "
                "draws with replacement.",
            ),
        ),
    ),
    Rule(
        order=1530,
        checks="the order of the data",
        find=repeated_orders,
        needs=(needs.inputs, _comparable_batches),
        codes=(
            Code(
                name="data-not-shuffled",
                means="The batches come in the same order in every epoch. This is only a note: sometimes it is "
                "intended.",
                fix="`DataLoader(..., shuffle=True)`.",
                follows_from=("epoch-order-repeated", "dataset-mutated", "duplicate-samples"),
            ),
        ),
    ),
)
