"""What epochs should not be: samples repeated within one, the same order in each, or a dataset that changes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, pvariance

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import Epoch, first_inputs, sample_hashes, site_of, training_epochs
from roundoff.diagnose.rule import Code, error, note, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import ArrayContent, BatchFacts, Finding, Run, TensorFacts, object_of
from roundoff.words import join_names, plural

_MANY_BATCHES = 20
_MIN_REPEATED_SHARE = 0.1
_MIN_REPEATED = 4
_MIN_SAMPLE_SIZE = 8
"""Smaller samples may be equal by nature."""
_DRAW_ONCE = frozenset({"SequentialSampler", "RandomSampler", "SubsetRandomSampler"})
_EVEN = 0.5
"""The part of the variance by chance below which samples occur evenly."""
_MIN_PAIRS = 3
_MIN_ROUNDS = 2
"""In a single round, workers may be alike because all batches are."""


@rule(
    Code(
        name="dataset-mutated",
        means="The dataset holds different numbers in the next epoch: code that reads a sample also writes into it.",
        fix="Work on copies: `x = x.clone()` first in `__getitem__`, and `x = x - mean` instead of `x -= mean`.",
    ),
    order=1310,
    checks="datasets that change while they are read",
    needs=[
        needs.epochs(2),
        needs.some(
            lambda run: any(_arrays(epoch) for rank in run.ranks for epoch in training_epochs(run, rank)),
            "the arrays of the dataset could not be read",
        ),
    ],
)
@on_first_rank
def mutated_datasets(run: Run, rank: int) -> Finding | None:
    """Find a dataset whose arrays hold different values in the same memory when the next epoch begins."""
    epochs = training_epochs(run, rank)
    for one, other in itertools.pairwise(epochs):
        for name, before in _arrays(one).items():
            after = _arrays(other).get(name)
            if after is not None and _is_edited(before, after):
                return _mutated_finding(name, before, after, other.first_step, rank, len(epochs))
    return None


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
    return error(
        rule="dataset-mutated",
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


@rule(
    Code(
        name="loader-workers-alike",
        means="The workers of a DataLoader draw the same random numbers, or read the same stream: each gives the same "
        "samples as the others.",
        fix="Seed each worker differently: in `worker_init_fn`, or by `torch.utils.data.get_worker_info().seed`; split "
        "an IterableDataset by the number of the worker.",
    ),
    order=1305,
    checks="workers of a DataLoader that give the same samples",
    needs=[
        needs.epochs(1),
        needs.some(
            lambda run: any(epoch.detail.num_workers > 1 for rank in run.ranks for epoch in training_epochs(run, rank)),
            "no DataLoader with several workers was seen",
        ),
    ],
)
def alike_workers(run: Run) -> Finding | None:
    """Find workers whose batches are equal round by round, and generators of which all workers have the same copy."""
    for rank, place, _ in first_inputs(run):
        for epoch in training_epochs(run, rank):
            if epoch.detail.num_workers < 2:
                continue
            rounds = _equal_rounds(run, rank, place, epoch)
            if rounds or (epoch.detail.generators and not epoch.detail.has_worker_init):
                return _alike_finding(epoch, rounds, rank)
    return None


def _equal_rounds(run: Run, rank: int, place: str, epoch: Epoch) -> list[int]:
    """Return the steps that begin a round in which all workers gave the same batch; empty unless all rounds are so.

    The workers take turns: batch k of an epoch comes from worker k modulo their number.
    """
    batches = _batches_of(run, rank, place, epoch)
    workers = epoch.detail.num_workers
    starts = [step for step in batches if not (step - epoch.first_step) % workers]
    rounds = {step: [batches.get(step + worker) for worker in range(workers)] for step in starts}
    whole = {step: given for step, given in rounds.items() if all(given)}
    are_alike = all(batch == given[0] for given in whole.values() for batch in given)
    num_different = len({tuple(given[0] or ()) for given in whole.values()})
    return list(whole) if are_alike and num_different >= _MIN_ROUNDS else []


def _batches_of(run: Run, rank: int, place: str, epoch: Epoch) -> dict[int, list[int]]:
    """Return the hashes of the samples of each step of an epoch."""
    table = run.hashes(step=range(epoch.first_step, epoch.end_step), rank=rank)
    table = table.take(table.texts("kind").equals("sample") & table.texts("name").equals(place))
    batches: dict[int, list[int]] = {}
    for step, number in zip(table["step"].to_list(), table["hash"].to_list(), strict=True):
        batches.setdefault(step, []).append(number)
    return batches


def _alike_finding(epoch: Epoch, rounds: list[int], rank: int) -> Finding:
    workers, generators = epoch.detail.num_workers, join_names(epoch.detail.generators, at_most=3)
    last = workers - 1
    made, seen = (error if rounds else warning), []
    does = "give the same samples" if rounds else "draw the same numbers"
    if rounds:
        seen.append(
            f"in each of {plural(len(rounds), 'round')} from step {rounds[0]} on, the workers 0 to {last} gave the "
            f"same samples: the batch of step {rounds[0] + 1} is that of step {rounds[0]}"
        )
    if generators:
        seen.append(
            f"reading a sample draws from {generators}, of which each of the {workers} workers has a copy in the same "
            "state"
        )
    is_stream = epoch.detail.sampler == "_InfiniteConstantSampler" and not generators
    fix = (
        "seed a generator in each worker: rng = np.random.default_rng(torch.utils.data.get_worker_info().seed), or in "
    )
    fix += "DataLoader(worker_init_fn=...)"
    if is_stream:
        fix = (
            "let each worker read its part of the stream: take every num_workers-th item from the worker's id on, both "
        )
        fix += "of torch.utils.data.get_worker_info(), which also has a seed for each worker"
    return made(
        rule="loader-workers-alike",
        confidence=0.95 if rounds else 0.8,
        step=rounds[0] + 1 if rounds else epoch.first_step,
        rank=rank,
        title=f"the {workers} workers of the DataLoader {does}",
        why="; ".join(seen),
        fix=fix,
        evidence=({"num_workers": workers, "num_rounds": len(rounds), "generators": [*epoch.detail.generators]},),
    )


@rule(
    Code(
        name="duplicate-samples",
        means="Samples occur several times within an epoch, although the sampler does not draw with replacement.",
        fix="Check the sampler: each index should occur once. If repetition is intended, use a sampler that draws with "
        "replacement.",
        follows_from=("loader-workers-alike",),
    ),
    order=1320,
    checks="samples repeated within an epoch",
    needs=[
        needs.inputs,
        needs.epochs(1),
        needs.some(
            lambda run: any(sample_hashes(run, rank, place) for rank, place, _ in first_inputs(run)),
            "no samples were hashed",
        ),
    ],
)
def duplicate_samples(run: Run) -> Finding | None:
    """Find samples that occur several times within an epoch, although their sampler does not draw with replacement.

    In pairs and triplets one item meets many others: there, nothing is wrong with its occurring again.
    """
    for rank, place, seen in first_inputs(run):
        if math.prod(seen[0][1].shape[1:]) < _MIN_SAMPLE_SIZE or _are_compared(run, rank, place):
            continue
        for epoch in map(_pass_of, training_epochs(run, rank)):
            if epoch.detail.replacement or epoch.detail.sampler == "DistributedSampler":
                break
            hashes = _drawn_samples(run, rank, place, epoch)
            if not _is_seen_enough(run, rank, epoch):
                continue  # in a few batches a rare class, oversampled on purpose, looks like accidental repetitions
            again = len(hashes) - len(set(hashes))
            is_much = again >= max(_MIN_REPEATED, _MIN_REPEATED_SHARE * len(hashes)) and len(set(hashes)) > 1
            is_by_sampler = epoch.detail.sampler not in _DRAW_ONCE
            if is_much and not _is_oversampling(hashes) and (is_by_sampler or _is_systematic(hashes)):
                return _duplicates_finding(run, epoch, place, hashes, again, rank)
    return None


def _pass_of(epoch: Epoch) -> Epoch:
    """Return an epoch without steps after its last batch: another loader, with a dataset of its own, may follow."""
    num = epoch.detail.num_batches
    return epoch if not num else replace(epoch, end_step=min(epoch.end_step, epoch.first_step + num))


def _are_compared(run: Run, rank: int, place: str) -> bool:
    """Say whether a loss is computed from several items of the same kind: by a model called on each, or on all."""
    backwards = Counter(call.step for call in run.calls(rank=rank) if call.call == "backward")
    batches = [batch for batch in run.inputs(rank=rank) if backwards[batch.step]]
    first = batches[:_MANY_BATCHES]
    return bool(first) and all(len(_alike(batch, place)) > backwards[batch.step] for batch in first)


def _alike(batch: BatchFacts, place: str) -> list[TensorFacts]:
    """Return the inputs of one model with the shape of the one at a place, numbers only: ids come with masks."""
    shape = next((tensor.shape for tensor in batch.tensors if tensor.place == place), None)
    return [
        tensor
        for tensor in batch.tensors
        if tensor.shape == shape and "float" in tensor.dtype and site_of(tensor.place) == site_of(place)
    ]


def _drawn_samples(run: Run, rank: int, place: str, epoch: Epoch) -> list[int]:
    """Return the hashes of the samples of an epoch; a batch that serves several steps in a row was drawn once."""
    batches = _batches_of(run, rank, place, epoch).values()
    return [number for batch, _ in itertools.groupby(batches) for number in batch]


def _is_seen_enough(run: Run, rank: int, epoch: Epoch) -> bool:
    """Say whether most batches of an epoch were looked at, or at least many."""
    num = sum(epoch.first_step <= batch.step < epoch.end_step for batch in run.inputs(rank=rank))
    return num >= min((epoch.end_step - epoch.first_step) / 2, _MANY_BATCHES)


def _is_systematic(hashes: list[int]) -> bool:
    """Say whether samples occur more evenly than by chance, as where reading index 2k and 2k + 1 gives the same one.

    Torch's own samplers draw each index once, so equal samples come from the dataset. How often short texts, or samples
    that it draws at random, occur follows the law of rare events, of which those that never occur are not seen.
    """
    counts = list(Counter(hashes).values())
    mean = rate = fmean(counts)
    for _ in range(100):
        rate = mean * -math.expm1(-rate)
    return pvariance(counts) < _EVEN * mean * (1 + rate - mean)


def _is_oversampling(hashes: list[int]) -> bool:
    """Say whether most samples occur once and a few of them often: a rare class, oversampled on purpose.

    Among accidental repetitions, samples that occur twice outnumber those that occur more often.
    """
    counts = Counter(Counter(hashes).values())
    num_often = sum(num for times, num in counts.items() if times > 2)
    return counts[1] >= counts.total() / 2 and num_often > 2 * counts[2]


@rule(
    Code(
        name="data-not-shuffled",
        means="The batches come in the same order in every epoch. This is only a note: sometimes it is intended.",
        fix="`DataLoader(..., shuffle=True)`.",
        follows_from=("epoch-order-repeated", "dataset-mutated", "duplicate-samples"),
    ),
    order=1530,
    checks="the order of the data",
    needs=[
        needs.inputs,
        needs.some(
            lambda run: any(len(seen) > _MIN_PAIRS for _, _, seen in first_inputs(run)),
            "too few batches were observed",
        ),
    ],
)
def repeated_orders(run: Run) -> Finding | None:
    """Find a training that gets its batches in the same order in every epoch."""
    for rank, _, seen in first_inputs(run):
        batches = {step: tensor.hash for step, tensor in seen}
        for batch in run.inputs(rank=rank):  # augmented inputs never repeat, but their labels do
            if len(batch.targets) == 1 and batch.step in batches and len(batch.targets[0].counts) != 1:
                batches[batch.step] = batch.targets[0].hash
        pairs = _pairs(training_epochs(run, rank), batches) or _pairs_by_period(batches)
        if len(pairs) >= _MIN_PAIRS and all(batches[one] == batches[other] for one, other in pairs):
            return _same_order_finding(pairs, rank)
    return None


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
    return warning(
        rule="duplicate-samples",
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
    hashes = _drawn_samples(run, rank, place, replace(epoch, end_step=step + 1))
    return len(set(hashes)) < len(hashes)


def _same_order_finding(pairs: list[tuple[int, int]], rank: int) -> Finding:
    one, other = pairs[0]
    return note(
        rule="data-not-shuffled",
        confidence=0.9,
        step=other,
        rank=rank,
        title="the data has the same order in every epoch",
        why=f"step {other} has the batch of step {one}, and so on: all {plural(len(pairs), 'observed pair')} of steps "
        "at the same position of their epochs have equal batches",
        fix="DataLoader(..., shuffle=True), unless the order is intended",
        evidence=({"pairs": [[*pair] for pair in pairs[:10]]},),
    )
