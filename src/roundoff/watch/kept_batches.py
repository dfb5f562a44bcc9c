"""A few samples of the first batches, kept in the run: wrong data is seen, not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from roundoff.record.sites import Sites
from roundoff.record.tensor_bytes import bytes_of, file_dtype
from roundoff.runs import RunWriter
from roundoff.watch.batch_facts import tensors_from_outside
from roundoff.watch.step_tape import StepTape

_MOST_SAMPLES = 8
_MOST_TENSORS = 4
_MOST_BYTES = 4 * 2**20
"""Of one tensor; a sample that is larger than that is not kept."""


class KeptBatches:
    """Writes the first samples of what models and loss functions were given, of the first few steps."""

    def __init__(self, writer: RunWriter, *, sites: Sites, most: int) -> None:
        self._writer = writer
        self._sites = sites
        self._most = most
        self._next = 0

    def see(self, tape: StepTape, *, targets: Sequence[Tensor]) -> None:
        """Keep some of a step's batch, if it is among the first; of several microbatches the first."""
        if self._next >= self._most:
            return
        found: dict[str, Tensor] = {}
        for key, x in self._named(tape, targets):
            part = _part(x)
            if part is not None and len(found) < _MOST_TENSORS:
                found.setdefault(key, part)
        if not found:
            return
        with self._writer.batch(self._next) as file:
            for key, part in found.items():
                file.add(key, bytes_of(part), dtype=str(file_dtype(part)), shape=tuple(part.shape))
        self._next += 1

    def _named(self, tape: StepTape, targets: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the target of the loss, then the inputs of models by the place they went to."""
        outside = list(tensors_from_outside(tape, self._sites))
        given = targets or [x for place, x, is_target in outside if is_target or place.endswith(":labels")]
        yield from (("target", x.detach()) for x in given[:1])
        yield from ((f"input/{place}", x) for place, x, is_target in outside if not is_target)


def _part(x: Tensor) -> Tensor | None:
    """Return the first samples, as many as there is room for; None if not even one can be kept."""
    if not x.dim() or not x.numel() or x.layout is not torch.strided or file_dtype(x) is None:
        return None
    sample_bytes = x[0].numel() * x.element_size()
    num = min(_MOST_SAMPLES, len(x), _MOST_BYTES // max(1, sample_bytes))
    return x[:num] if num else None
