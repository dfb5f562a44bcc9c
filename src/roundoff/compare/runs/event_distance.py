"""How far apart two recorded tensors are: from whole tensors where both runs saved them, else from summaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from roundoff.compare.tensors.tensor_distance import measure_distance
from roundoff.compare.tensors.tensor_files import SavedTensor, TensorSource, tensors_of_step
from roundoff.errors import RunFolderError
from roundoff.kernels.sketches import difference_norms, differing_channels
from roundoff.runs import SKETCH_LENGTH, Event, Run

TensorKey: TypeAlias = tuple[int, str]

LOCAL = 0.9
"""A difference is local if that share of its square, at least, lies in one channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far a candidate's tensor is from the reference's."""

    is_equal: bool
    """Bit for bit."""
    is_comparable: bool
    """Whether the shapes agree; if not, the numbers are NaN."""
    absolute: float
    """The norm of the difference: an estimate from sketches, or a lower bound where there are none; infinite where
    one has NaN or infinity and the other has not."""
    relative: float
    """The same over the norm of the reference's tensor, or the candidate's if that is larger."""
    channel: int | None = None
    """The one channel in which they differ, if it is one."""


EQUAL = Distance(is_equal=True, is_comparable=True, absolute=0.0, relative=0.0)
NOT_COMPARABLE = Distance(is_equal=False, is_comparable=False, absolute=math.nan, relative=math.nan)


def distances(pairs: Sequence[tuple[Event, Event]]) -> list[Distance]:
    """Measure each pair of a reference's and a candidate's tensor."""
    found = [_without_sketch(a, b) for a, b in pairs]
    places = [i for i, distance in enumerate(found) if _needs_sketch(distance, *pairs[i])]
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
    """Tell a tensor by its size and norm, which a view that only turns or reshapes it has, too."""
    return event.num_elements, f"{event.l2:.9g}"


def divide_event(event: Event, divisor: float) -> Event:
    """Return the summary of a tensor divided by a number; its hash is that of another tensor then."""
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
        bound = max(bound, 1.0)  # whole numbers with another hash differ by one at least
    return _distance(bound, a, b)


def _distance(norm: float, a: Event, b: Event, *, channel: int | None = None) -> Distance:
    scale = max(a.l2, b.l2)
    relative = norm / scale if scale else 0.0
    return Distance(is_equal=False, is_comparable=True, absolute=norm, relative=relative, channel=channel)


def _needs_sketch(distance: Distance, a: Event, b: Event) -> bool:
    measurable = distance.is_comparable and not distance.is_equal and math.isfinite(distance.absolute)
    return measurable and a.sketch_bytes is not None and b.sketch_bytes is not None


def _sketches(events: Iterable[Event]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    joined = b"".join(event.sketch_bytes or b"" for event in events)
    return np.frombuffer(joined, dtype="<f4").reshape(-1, SKETCH_LENGTH)


def num_channels(event: Event) -> int:
    """Return how many channels a tensor has: its second dimension if it has four or more, else its last."""
    return event.shape[1 if len(event.shape) >= 4 else -1] if event.shape else 1


HELD_BYTES = 64 * 2**20
"""After so many bytes read, the memory they took is given back."""


class WholeTensors:
    """The whole tensors of one step of two runs."""

    def __init__(self, reference: TensorSource, candidate: TensorSource) -> None:
        self._sources = reference, candidate
        self._ours = {tensor.name: tensor for tensor in reference.tensors}
        self._theirs = {tensor.name: tensor for tensor in candidate.tensors}
        self._known: dict[tuple[str, str], Distance] = {}
        self._num_bytes = 0

    @classmethod
    def of_step(cls, reference: Run, candidate: Run, *, step: int, rank: int) -> WholeTensors | None:
        """Open them; None if either run kept none of this step."""
        try:
            reference_tensors, candidate_tensors = (
                tensors_of_step(run, step, rank=rank) for run in (reference, candidate)
            )
        except RunFolderError:
            return None
        return cls(reference_tensors, candidate_tensors)

    def distance(self, a: Event, b: Event) -> Distance | None:
        """Return how far two tensors of one shape are apart, exactly; None if one of them was not kept."""
        reference, candidate = self._ours.get(_key(a)), self._theirs.get(_key(b))
        if reference is None or candidate is None or reference.shape != candidate.shape:
            return None
        contents = reference.content, candidate.content
        if contents not in self._known:
            self._known[contents] = self._measured(reference, candidate, norms=(a.l2, b.l2))
        return self._known[contents]

    def _measured(self, reference: SavedTensor, candidate: SavedTensor, *, norms: tuple[float, float]) -> Distance:
        tensors = reference.read(), candidate.read()
        found = measure_distance(*tensors)
        self._num_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        del tensors
        if self._num_bytes > HELD_BYTES:
            self._num_bytes = 0
            for source in self._sources:
                source.let_go()
        absolute = found.relative * norms[0] if norms[0] else norms[1]
        if found.num_unlike:
            absolute = math.inf
        return Distance(
            is_equal=found.is_equal,
            is_comparable=True,
            absolute=absolute,
            relative=absolute / max(norms) if any(norms) else 0.0,
            channel=found.channel,
        )


def _key(event: Event) -> str:
    return f"{event.phase}/{event.microbatch}/{event.site}/{event.op_name}:{event.output}"
