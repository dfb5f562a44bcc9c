"""Writes what a step left behind into the run: events, hashes, tensors, metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from roundoff.kernels import row as columns
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import PHASES
from roundoff.record.ops.recorder import GRADIENT, OpRecorder
from roundoff.record.ops.rows import EventKey, Rows
from roundoff.record.source_lines import Sources
from roundoff.record.tensor_bytes import bytes_of, file_dtype
from roundoff.runs import HashColumns, Interned, RunWriter, TensorWriter


class StepWriter:
    """Writes one recorded step after another; whole tensors go out as they come, the rest when the step closes."""

    def __init__(self, writer: RunWriter, *, sites: Sites, sources: Sources | None) -> None:
        self.num_events = 0
        self.left_out: Counter[str] = Counter()
        """How many tensors of which dtypes a file cannot hold."""
        self._writer = writer
        self._sites = sites
        self._sources = sources
        self._tensors: TensorWriter | None = None

    def write_tensor(self, step: int, recorder: OpRecorder, x: Tensor, place: int) -> None:
        """Append a tensor, with the key of the row at `place`, to the step's file."""
        dtype = file_dtype(x)
        if dtype is None:
            self.left_out[str(x.dtype).removeprefix("torch.")] += 1
            return
        if self._tensors is None:
            self._tensors = self._writer.tensors(step)
        key = recorder.rows.keys()[place]
        name = (
            f"{PHASES[key.phase]}/{key.microbatch}/{self._sites.names[key.site]}/"
            f"{recorder.ops.values[key.op]}#{key.nth}:{recorder.outputs.values[key.output]}"
        )
        content = recorder.rows.content_hash(place)
        self._tensors.add(name, bytes_of(x), dtype=dtype, shape=tuple(x.shape), content_hash=content)

    def write_step(self, step: int, recorder: OpRecorder, rows: Rows) -> None:
        """Write the rows of a step that closed, and everything that waited for it."""
        if self._tensors is not None:
            self._tensors.close()
            self._tensors = None
        if len(rows):
            lines: Sequence[str] = self._sources.lines if self._sources else ()
            self._writer.write_events(
                rows.to_columns(
                    step,
                    sites=self._sites.names,
                    ops=recorder.ops.values,
                    outputs=recorder.outputs.values,
                    parameters=recorder.parameters.values,
                    sources=lines,
                )
            )
            self._write_hashes(step, recorder, rows)
        self._writer.flush()
        if self._writer.stopped is None:
            self.num_events += len(rows)

    def discard(self) -> None:
        """Leave no half-written file of tensors."""
        if self._tensors is not None:
            self._tensors.discard()
            self._tensors = None

    def _write_hashes(self, step: int, recorder: OpRecorder, rows: Rows) -> None:
        """Repeat the hashes of inputs, parameters and gradients in the table that ranks and resumed runs compare."""
        places = [place for place, key in enumerate(rows.keys()) if key.op <= GRADIENT]
        if not places:
            return
        keys = [rows.keys()[place] for place in places]
        names = [
            recorder.parameters.values[key.parameter] if key.parameter >= 0 else self._name_without_parameter(key)
            for key in keys
        ]
        self._writer.write_hashes(
            HashColumns(
                step=np.full(len(places), step, dtype=np.int32),
                microbatch=np.array([key.microbatch for key in keys], dtype=np.int16),
                kind=Interned.of([recorder.ops.values[key.op] for key in keys]),
                name=Interned.of(names),
                hash=np.ascontiguousarray(rows.numbers()[places, columns.HASH]).view(np.uint64),
            )
        )

    def _name_without_parameter(self, key: EventKey) -> str:
        call = f"#{key.nth}" if key.nth else ""
        return f"{self._sites.names[key.site]}{call}[{key.output}]"


def grad_norm(rows: Rows) -> float | None:
    """Return the norm of all gradients among the rows together, or None where there are none."""
    places = [place for place, key in enumerate(rows.keys()) if key.op == GRADIENT]
    return math.sqrt(rows.numbers()[places, columns.SUM_SQUARES].sum()) if places else None
