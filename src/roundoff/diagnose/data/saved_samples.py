"""The first samples that a run saved, as arrays: the inputs of models, with the label of each sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roundoff.runs import BatchFacts, Run, TensorFile

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
    targets = [*facts.targets, *(tensor for tensor in facts.tensors if tensor.is_target or _is_label(tensor.place))]
    given = next((tensor for tensor in facts.tensors if tensor.place == place), None)
    if given is None or not targets or not given.shape or not targets[0].shape:
        return False
    return given.shape[0] == targets[0].shape[0]


def _is_label(place: str) -> bool:
    return place.endswith(":labels")


def _numbers(file: TensorFile, key: str) -> Array | None:
    """Return a tensor as numpy knows it; None for formats of 8 bits and complex numbers, which are no data.

    None, too, where there are no samples: a run folder may be anybody's.
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
