"""Measures pairs of events by their whole tensors, where both runs kept them, instead of by their sketches."""

from __future__ import annotations

import math

from roundoff.compare.distance import Distance
from roundoff.compare.tensor_distance import measure
from roundoff.compare.tensor_files import SavedTensor, TensorSource, tensors_of_step
from roundoff.errors import RunFolderError
from roundoff.runs import Event, Run

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
            ours, theirs = (tensors_of_step(run, step, rank=rank) for run in (reference, candidate))
        except RunFolderError:
            return None
        return cls(ours, theirs)

    def distance(self, a: Event, b: Event) -> Distance | None:
        """Return how far two tensors of one shape are apart, exactly; None if one of them was not kept."""
        ours, theirs = self._ours.get(_key(a)), self._theirs.get(_key(b))
        if ours is None or theirs is None or ours.shape != theirs.shape:
            return None
        contents = ours.content, theirs.content
        if contents not in self._known:
            self._known[contents] = self._measured(ours, theirs, norms=(a.l2, b.l2))
        return self._known[contents]

    def _measured(self, ours: SavedTensor, theirs: SavedTensor, *, norms: tuple[float, float]) -> Distance:
        tensors = ours.read(), theirs.read()
        found = measure(*tensors)
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
