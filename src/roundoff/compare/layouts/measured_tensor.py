"""One tensor of one rank, as far as it was recorded, and how it relates to another: equal, a multiple, or neither."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from roundoff.formats import format_named
from roundoff.kernels.array_sums import sums_of_arrays
from roundoff.runs import Event, TensorFile
from roundoff.tensor_header import TENSOR_DTYPES

Array = npt.NDArray[np.floating[Any]]

MIN_TOLERANCE = 1e-3
"""Results in fp32 that were computed in another order differ by less than this part of their norm."""
MAX_TOLERANCE = 0.2
EXACT = 1e-12
"""Whole numbers are the same or not."""
ROUNDINGS = 16.0
"""And those of narrower formats by less than this many roundings."""


@dataclass(frozen=True, slots=True)
class FactorFit:
    """The multiple of one tensor that is nearest to another, and what remains, as a part of its norm."""

    factor: float
    residual: float

    def is_multiple(self, tolerance: float) -> bool:
        """Whether nothing remains."""
        return self.residual <= tolerance * max(1.0, abs(self.factor))

    def is_equal(self, tolerance: float) -> bool:
        """Whether the two are the same."""
        return self.is_multiple(tolerance) and abs(self.factor - 1) <= tolerance


SAME = FactorFit(1.0, 0.0)
UNKNOWN = FactorFit(math.nan, math.inf)


@dataclass(frozen=True, kw_only=True)
class MeasuredTensor:
    """A tensor of one rank: its summary, and its values where whole tensors were recorded."""

    event: Event
    file: TensorFile | None = None
    given: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of this rank's part."""
        return self.event.shape

    @property
    def tolerance(self) -> float:
        """The largest part of its norm by which another order of computing changes it."""
        return tolerance_of(self.event.dtype)

    @cached_property
    def values(self) -> Array | None:
        """Its elements in fp32, those of wider formats and integers in fp64; None if they were not recorded."""
        if self.given is not None or self.file is None:
            return self.given
        event = self.event
        key = f"{event.phase}/{event.microbatch}/{event.site}/{event.op}#{event.nth}:{event.output}"
        return _wide(self.file, key) if key in self.file else None

    @cached_property
    def projections(self) -> Array | None:
        """Sums with random signs, the same signs for every tensor of this shape; they add up as tensors do."""
        sketch = self.event.sketch
        return None if sketch is None or self.event.num_nonfinite else sketch.astype(np.float64)

    def with_values(self, values: Array) -> MeasuredTensor:
        """Return the same with other values."""
        event = replace(
            self.event,
            shape=values.shape,
            hash=0,
            l2=float(np.linalg.norm(values.astype(np.float64))),
            sketch_bytes=None,
        )
        return MeasuredTensor(event=event, given=values)


def tolerance_of(dtype: str) -> float:
    """Return the largest part of its norm by which another order of computing changes a tensor of this dtype.

    >>> tolerance_of("float32"), round(tolerance_of("bfloat16"), 3), tolerance_of("int64")
    (0.001, 0.125, 1e-12)
    """
    if "float" not in dtype:
        return EXACT
    short = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}.get(dtype)
    unit = format_named(short).eps if short else MAX_TOLERANCE
    return min(MAX_TOLERANCE, max(MIN_TOLERANCE, ROUNDINGS * unit))


def fit(candidate: MeasuredTensor, reference: MeasuredTensor) -> FactorFit:
    """Return how a tensor relates to another of the same shape, by their values, else by their projections."""
    if candidate.shape != reference.shape:
        return UNKNOWN
    if candidate.event.hash == reference.event.hash and candidate.event.hash and _same_dtype(candidate, reference):
        return SAME
    if candidate.values is not None and reference.values is not None:
        return fit_arrays(candidate.values, reference.values)
    if candidate.projections is None or reference.projections is None:
        return UNKNOWN
    return fit_arrays(candidate.projections, reference.projections)


def _same_dtype(candidate: MeasuredTensor, reference: MeasuredTensor) -> bool:
    return candidate.event.dtype == reference.event.dtype


def fit_arrays(candidate: Array, reference: Array) -> FactorFit:
    """Return the multiple of the reference that is nearest to the candidate, and the rest.

    >>> fit_arrays(np.array([2.0, 4.0]), np.array([1.0, 2.0]))
    FactorFit(factor=2.0, residual=0.0)
    """
    if candidate.dtype == reference.dtype == np.float32:
        return _fit_fp32(candidate, reference)
    a, b = (x.ravel().astype(np.float64, copy=False) for x in (candidate, reference))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return UNKNOWN
    square = float(b @ b)
    if not square:
        return SAME if not a.any() else UNKNOWN
    factor = float(a @ b) / square
    return FactorFit(factor, float(np.linalg.norm(a - factor * b)) / math.sqrt(square))


def _fit_fp32(candidate: Array, reference: Array) -> FactorFit:
    """Return the same in one pass; the rest is exact to about 1e-8 of the reference's norm."""
    sums = sums_of_arrays(candidate, reference)
    if math.isnan(sums.second):
        return UNKNOWN
    if not sums.second:
        return SAME if not sums.difference else UNKNOWN
    factor = sums.product / sums.second
    return FactorFit(factor, math.sqrt(max(0.0, sums.difference / sums.second - (1 - factor) ** 2)))


def fit_sum(parts: Sequence[MeasuredTensor], reference: MeasuredTensor) -> FactorFit:
    """Return how the sum of tensors relates to another, all of one shape."""
    values = [part.values for part in parts]
    if reference.values is not None and all(value is not None for value in values):
        wide = [value.astype(np.float64) for value in values if value is not None]
        return fit_arrays(np.sum(wide, axis=0), reference.values)
    sketches = [part.projections for part in parts]
    if reference.projections is None or any(sketch is None for sketch in sketches):
        return UNKNOWN
    return fit_arrays(np.sum([sketch for sketch in sketches if sketch is not None], axis=0), reference.projections)


def fit_pieces(parts: Sequence[MeasuredTensor], reference: MeasuredTensor) -> FactorFit:
    """Return how tensors that together hold every element of another relate to it, by what adds up over parts.

    These are the sums of elements, of their magnitudes and of their squares; extrema are those of any part.
    """
    events, whole = [part.event for part in parts], reference.event
    l2 = math.sqrt(math.fsum(event.l2**2 for event in events))
    if not whole.l2 or not math.isfinite(l2):
        return SAME if l2 == whole.l2 == 0 else UNKNOWN
    factor = l2 / whole.l2
    scale = whole.sum_abs or 1.0
    rests = [
        (math.fsum(event.sum_abs for event in events) - factor * whole.sum_abs) / scale,
        (math.fsum(event.mean * event.num_elements for event in events) - factor * whole.mean * whole.num_elements)
        / scale,
        (min(event.min for event in events) - factor * whole.min) / whole.absmax,
        (max(event.max for event in events) - factor * whole.max) / whole.absmax,
    ]
    return FactorFit(factor, max(map(abs, rests)))


def _wide(file: TensorFile, key: str) -> Array | None:
    entry = file.entry(key)
    kind = TENSOR_DTYPES[entry.dtype]
    array: Any = file[key]
    if kind.torch == "bfloat16":
        return np.asarray((array.astype(np.uint32) << 16).view(np.float32))
    if array.dtype.kind not in "fiub" or kind.torch.startswith("float8"):
        return None
    return np.asarray(array, dtype=np.float32 if kind.torch in ("float32", "float16") else np.float64)
