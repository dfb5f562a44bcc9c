"""How far apart two recorded tensors are: from whole tensors where both runs saved them, else from summaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from roundoff.compare.tensors.tensor_distance import LOCAL
from roundoff.compare.tensors.tensor_files import DistanceCache, TensorSource, tensors_of_step
from roundoff.errors import RunFolderError
from roundoff.kernels.row import difference_norms, differing_channels
from roundoff.runs import SKETCH_LENGTH, Event, Run

TensorKey: TypeAlias = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far a candidate's tensor is from the reference's."""

    is_equal: bool
    """Bit for bit."""
    is_comparable: bool
    """Whether the shapes agree; if not, the numbers are NaN."""
    absolute: float
    """The norm of the difference: an estimate from sketches, or a lower bound if there are none; infinite if only
    one has NaN or infinity."""
    relative: float
    """The same over the norm of the reference's tensor, or the candidate's if that is larger."""
    channel: int | None = None
    """The channel in which they differ, if it is only one."""


EQUAL = Distance(is_equal=True, is_comparable=True, absolute=0.0, relative=0.0)
NOT_COMPARABLE = Distance(is_equal=False, is_comparable=False, absolute=math.nan, relative=math.nan)


def distances(pairs: Sequence[tuple[Event, Event]]) -> list[Distance]:
    """Measure each pair of a reference's and a candidate's tensor."""
    found = [_without_sketch(a, b) for a, b in pairs]
    places = [
        i
        for i, (distance, (a, b)) in enumerate(zip(found, pairs, strict=True))
        if not distance.is_equal and math.isfinite(distance.absolute) and a.sketch_bytes and b.sketch_bytes
    ]
    if not places:
        return found
    reference = _sketches(pairs[i][0] for i in places)
    candidate = _sketches(pairs[i][1] for i in places)
    norms = difference_norms(reference, candidate)
    channels, certainties = differing_channels(reference, candidate)
    for i, norm, channel, certainty in zip(places, norms, channels, certainties, strict=True):
        local = int(channel) if certainty >= LOCAL and num_channels(pairs[i][0]) > 1 else None
        found[i] = _distance(float(norm), *pairs[i], channel=local)
    return found


def tensor_key(event: Event) -> TensorKey:
    """Identify a tensor by its size and norm, which transposing and reshaping do not change."""
    return event.num_elements, f"{event.l2:.9g}"


def divide_event(event: Event, divisor: float) -> Event:
    """Return the summary of a tensor divided by a number, with another hash."""
    sketch = event.sketch
    return replace(
        event,
        min=event.min / divisor,
        max=event.max / divisor,
        mean=event.mean / divisor,
        sum_abs=event.sum_abs / divisor,
        l2=event.l2 / divisor,
        hash=~event.hash & (2**64 - 1),
        sketch_bytes=None if sketch is None else (sketch / np.float32(divisor)).tobytes(),
    )


def _without_sketch(a: Event, b: Event) -> Distance:
    if a.shape != b.shape:
        return NOT_COMPARABLE
    if a.hash == b.hash and a.dtype == b.dtype:
        return EQUAL
    if (a.num_nan, a.num_posinf, a.num_neginf) != (b.num_nan, b.num_posinf, b.num_neginf):
        return Distance(is_equal=False, is_comparable=True, absolute=math.inf, relative=math.inf)
    spread = abs(a.mean - b.mean) * math.sqrt(a.num_elements) if a.num_elements else 0.0
    bound = max(abs(a.l2 - b.l2), 0.0 if math.isnan(spread) else spread)
    if a.dtype == b.dtype and not a.dtype.startswith(("float", "bfloat")):
        bound = max(bound, 1.0)  # integers with another hash differ by at least one
    return _distance(bound, a, b)


def _distance(norm: float, a: Event, b: Event, *, channel: int | None = None) -> Distance:
    scale = max(a.l2, b.l2)
    relative = norm / scale if scale else 0.0
    return Distance(is_equal=False, is_comparable=True, absolute=norm, relative=relative, channel=channel)


def _sketches(events: Iterable[Event]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    joined = b"".join(event.sketch_bytes or b"" for event in events)
    return np.frombuffer(joined, dtype="<f4").reshape(-1, SKETCH_LENGTH)


def finite_absmax(event: Event) -> float:
    """Return the largest finite magnitude; 0 if there is none."""
    return 0.0 if math.isnan(event.absmax) else event.absmax


def num_channels(event: Event) -> int:
    """Return how many channels a tensor has: its second dimension if it has four or more, else its last."""
    return event.shape[1 if len(event.shape) >= 4 else -1] if event.shape else 1


class WholeTensors:
    """The whole tensors of one step of two runs."""

    def __init__(self, reference: TensorSource, candidate: TensorSource) -> None:
        self._reference, self._candidate = (
            {tensor.name: tensor for tensor in source.tensors} for source in (reference, candidate)
        )
        self._distances = DistanceCache()

    @classmethod
    def of_step(cls, reference: Run, candidate: Run, *, step: int, rank: int) -> WholeTensors | None:
        """Open them; None if either run kept none of this step."""
        try:
            return cls(*(tensors_of_step(run, step, rank=rank) for run in (reference, candidate)))
        except RunFolderError:
            return None

    def distance(self, a: Event, b: Event) -> Distance | None:
        """Return the exact distance of two tensors of one shape; None if one of them was not kept."""
        reference, candidate = self._reference.get(_key(a)), self._candidate.get(_key(b))
        if reference is None or candidate is None or reference.shape != candidate.shape:
            return None
        found = self._distances.between(reference, candidate)
        absolute = math.inf if found.num_unlike else found.relative * a.l2 if a.l2 else b.l2
        return Distance(
            is_equal=found.is_equal,
            is_comparable=True,
            absolute=absolute,
            relative=absolute / max(a.l2, b.l2) if a.l2 or b.l2 else 0.0,
            channel=found.channel,
        )


def _key(event: Event) -> str:
    return f"{event.phase}/{event.microbatch}/{event.site}/{event.op_name}:{event.output}"
