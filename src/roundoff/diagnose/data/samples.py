"""The samples of a run as the report shows them: the first ones as arrays, label counts, order and repetitions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roundoff.diagnose.loop_facts import Epoch, first_inputs, sample_hashes, targets_of, training_epochs
from roundoff.runs import BatchFacts, EpochDetail, Run, TensorFile

Array: TypeAlias = npt.NDArray[Any]

INPUT = "input/"
TARGET = "target"
MAX_CHANNELS = 16
COLOURS = (1, 3, 4)
"""The possible numbers of channels of a picture: gray, RGB, RGBA."""
_PLAIN = {"F64", "F32", "F16", "I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRange:
    """The range of one channel, over the finite elements of the saved samples."""

    min: float
    mean: float
    max: float
    std: float
    num_nonfinite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedInput:
    """The first samples of one model input."""

    place: str
    samples: Array
    """The first dimension counts samples; floating-point numbers are float32 or float64, others integers."""
    labels: Array | None
    """The target of each sample; None if there is not one target per sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBatch:
    """The saved part of one batch."""

    step: int
    inputs: Sequence[SavedInput]
    target: Array | None


def saved_batches(run: Run, rank: int) -> list[SavedBatch]:
    """Return the saved parts of a rank's first batches, in order."""
    facts = run.inputs(rank=rank)
    return [_batch(file, facts[place] if place < len(facts) else None, place)
            for place, file in enumerate(run.batches(rank=rank))]  # fmt: skip


def channel_ranges(samples: Array) -> list[ChannelRange]:
    """Return the range of each channel of pictures, or of each entry of vectors; empty if there are too many."""
    if samples.ndim not in (2, 4) or samples.dtype.kind not in "fu":
        return []
    axis = channel_axis(samples)
    if samples.shape[axis] > MAX_CHANNELS:
        return []
    return [_range(channel.astype(np.float64)) for channel in np.moveaxis(samples, axis, 0)]


def channel_axis(samples: Array) -> int:
    """Return the channel dimension: the second, or the last for pictures that have their colors there."""
    has_colours_last = samples.ndim == 4 and samples.shape[3] in COLOURS and samples.shape[1] not in COLOURS
    return 3 if has_colours_last else 1


def _range(values: npt.NDArray[np.float64]) -> ChannelRange:
    finite = values[np.isfinite(values)]
    num_nonfinite = values.size - finite.size
    if not finite.size:
        nan = float("nan")
        return ChannelRange(min=nan, mean=nan, max=nan, std=nan, num_nonfinite=num_nonfinite)
    return ChannelRange(
        min=float(finite.min()),
        mean=float(finite.mean()),
        max=float(finite.max()),
        std=float(finite.std()),
        num_nonfinite=num_nonfinite,
    )


def _batch(file: TensorFile, facts: BatchFacts | None, place: int) -> SavedBatch:
    target = _numbers(file, TARGET) if TARGET in file else None
    inputs = []
    for key in file:
        samples = _numbers(file, key) if key.startswith(INPUT) else None
        if samples is not None:
            name = key.removeprefix(INPUT)
            labels = target if target is not None and _belong(name, facts) else None
            inputs.append(SavedInput(place=name, samples=samples, labels=labels))
    return SavedBatch(step=place if facts is None else facts.step, inputs=inputs, target=target)


def _belong(place: str, facts: BatchFacts | None) -> bool:
    """Say whether there is one target per sample: batch and targets have the same length."""
    if facts is None:
        return False
    targets = targets_of(facts)
    given = next((tensor for tensor in facts.tensors if tensor.place == place), None)
    if given is None or not targets or not given.shape or not targets[0].shape:
        return False
    return given.shape[0] == targets[0].shape[0]


def _numbers(file: TensorFile, key: str) -> Array | None:
    """Return a tensor as numpy knows it; None for formats of 8 bits and complex numbers, which are no data.

    Also None if there are no samples: a run folder may come from anywhere.
    """
    dtype, shape = file.entry(key).dtype, file.entry(key).shape
    if not shape or 0 in shape:
        return None
    if dtype == "BF16":
        return (file[key].astype(np.uint32) << 16).view(np.float32)
    if dtype not in _PLAIN:
        return None
    values = file[key]
    if values.dtype == np.bool_:
        return values.astype(np.uint8)
    return values.astype(np.float32) if values.dtype == np.float16 else values


MAX_EPOCHS = 20
"""Of each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSeen:
    """What one rank received in one epoch, as far as it was observed."""

    rank: int
    epoch: int
    """Counted from 0."""
    first_step: int
    last_step: int
    sampler: str
    """The class of its sampler; empty if no DataLoader was seen."""
    num_samples: int
    num_again: int
    """Samples that had occurred before in the same epoch."""
    num_elsewhere: int
    """Samples that another rank received in the same epoch too."""
    is_same_order: bool | None
    """Whether its batches are those of the first epoch in the same order; None for the first epoch, or if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCounts:
    """How often each label was seen in the observed steps."""

    counts: Mapping[int, int]
    """In the order of the labels."""
    num_ignored: int
    num_steps: int


def label_counts(run: Run) -> LabelCounts | None:
    """Count the labels of all ranks; None if targets are not integers, or there are too many different ones."""
    counts: Counter[int] = Counter()
    num_ignored = num_steps = 0
    for rank in run.ranks:
        for batch in run.inputs(rank=rank):
            ignored = {-100, batch.criterion_settings.get("ignore_index")}
            counted = [target for target in targets_of(batch) if target.counts]
            num_steps += bool(counted)
            for target in counted:
                for text, num in target.counts.items():
                    label = _label(text)
                    if label in ignored:
                        num_ignored += num
                    else:
                        counts[label] += num
    if not counts:
        return None
    return LabelCounts(counts=dict(sorted(counts.items())), num_ignored=num_ignored, num_steps=num_steps)


def _label(text: str) -> int:
    """Return a label as a number: a class, or 1 for True and 0 for False."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else int(text == "True")


def epochs_seen(run: Run) -> list[EpochSeen]:
    """Return the first epochs of every rank, by rank and in order; empty if no samples were hashed."""
    hashes: dict[tuple[int, int], list[int]] = {}
    epochs: dict[tuple[int, int], Epoch] = {}
    batches: dict[int, dict[int, str]] = {}
    for rank, place, seen in first_inputs(run):
        batches[rank] = {step: tensor.hash for step, tensor in seen}
        whole = Epoch(first_step=seen[0][0], end_step=seen[-1][0] + 1, detail=EpochDetail())
        for number, epoch in enumerate((training_epochs(run, rank) or [whole])[:MAX_EPOCHS]):
            found = sample_hashes(run, rank, place, epoch=epoch)
            if found:
                hashes[rank, number], epochs[rank, number] = found, epoch
    found_epochs = []
    for (rank, number), epoch in epochs.items():
        mine, first = hashes[rank, number], epochs.get((rank, 0))
        others = {each for (of, at), found in hashes.items() if at == number and of != rank for each in found}
        found_epochs.append(
            EpochSeen(
                rank=rank,
                epoch=number,
                first_step=epoch.first_step,
                last_step=epoch.end_step - 1,
                sampler=str(epoch.detail.sampler or ""),
                num_samples=len(mine),
                num_again=len(mine) - len(set(mine)),
                num_elsewhere=sum(each in others for each in mine),
                is_same_order=None if not number or first is None else _is_same(first, epoch, batches[rank]),
            )
        )
    return found_epochs


def _is_same(first: Epoch, later: Epoch, batches: Mapping[int, str]) -> bool | None:
    """Say whether the batches at the same positions of two epochs are equal; None if there are none to compare."""
    ahead = later.first_step - first.first_step
    pairs = [
        (batches[step - ahead], batches[step])
        for step in range(later.first_step, later.end_step)
        if step in batches and first.first_step <= step - ahead < first.end_step and step - ahead in batches
    ]
    return all(one == other for one, other in pairs) if pairs else None
