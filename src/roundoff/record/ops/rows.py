"""The events of one step: one tuple per event while it runs, columns at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roundoff.kernels import histogram, summarize
from roundoff.kernels import row as columns
from roundoff.kernels.compiled import READABLE_DTYPE_CODES, compiled_kernels
from roundoff.kernels.host_copies import HostCopies
from roundoff.record.loop.step_clock import PHASES
from roundoff.record.reference import IntroducedError
from roundoff.runs import EventColumns, Interned, shape_to_text
from roundoff.torch_private import hidden_from_modes

MAX_ELEMENTS = 2**15
"""Of a larger tensor, evenly spaced slices are counted: that is enough for a picture, and 16 bits hold every count."""


class Histograms:
    """Counts by the place of their events; tensors on an accelerator are counted when their copies arrive."""

    def __init__(self, copies: HostCopies | None = None) -> None:
        self._counts: dict[int, npt.NDArray[np.uint16]] = {}
        self._copies = copies or HostCopies()

    def add(self, x: Tensor, place: int) -> None:
        """Count the elements of a tensor of floating-point numbers; others have no exponents."""
        if not x.is_floating_point() or not x.numel():
            return
        with hidden_from_modes():
            part = sample_slices(x.detach())
            if part.is_cpu:
                self._count(place, part)
            else:
                self._copies.add(part, partial(self._count, place))

    def _count(self, place: int, part: Tensor) -> None:
        self._counts[place] = histogram(part).astype(np.uint16)

    def column(self, num_rows: int) -> npt.NDArray[np.uint16] | None:
        """Return a line of counts for each event, masked where there are none; None if there are none at all."""
        self._copies.deliver()
        if not self._counts:
            return None
        values = np.zeros((num_rows, columns.NUM_HISTOGRAM_BUCKETS), dtype=np.uint16)
        missing = np.ones(values.shape, dtype=bool)
        for place, counts in self._counts.items():
            values[place], missing[place] = counts, False
        return np.ma.MaskedArray(values, mask=missing)


def sample_slices(x: Tensor) -> Tensor:
    """Return a small tensor as it is, and slices of the longest dimensions of a large one.

    >>> sample_slices(torch.zeros(2**20, 2)).shape
    torch.Size([16384, 2])
    """
    while x.numel() > MAX_ELEMENTS:
        longest = max(range(x.dim()), key=lambda dim: x.shape[dim])
        every = min(math.ceil(x.numel() / MAX_ELEMENTS), x.shape[longest])
        x = x[(*(slice(None) for _ in range(longest)), slice(None, None, every))]
    return x


_BLOCK = 1024
_ROW_BYTES = columns.ROW_WIDTH * 8


class RowKey(NamedTuple):
    """Where an event belongs, as codes of names; -1 where there is none."""

    phase: int
    microbatch: int
    site: int
    op: int
    nth: int
    output: int
    parameter: int
    source: int
    dtype: torch.dtype
    shape: torch.Size
    device: torch.device


_NUM_CODES = RowKey._fields.index("dtype")
_make_key = tuple.__new__
"""Makes a `RowKey` of a tuple, several times as fast as calling the class."""


class StepRows:
    """Summaries of a step's tensors with the keys they belong to.

    Tensors on the CPU are read at once by the compiled kernel; those elsewhere are copied without waiting, and their
    copies are read when the rows are taken.
    """

    def __init__(self, copies: HostCopies | None = None) -> None:
        self._copies = copies or HostCopies()
        self.histograms = Histograms(self._copies)
        self._blocks: list[npt.NDArray[np.float64]] = []
        self._keys: list[RowKey] = []
        self._errors: dict[int, tuple[float, float]] = {}
        self._readers: dict[int, Callable[[Tensor, int], None]] = {}
        self._address = 0
        self._free = 0
        kernels = compiled_kernels()
        self._summarize = kernels.summarize if kernels else None

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, x: Tensor, phase: int, microbatch: int, site: int, op: int, nth: int, output: int,
            parameter: int = -1, source: int = -1) -> int:  # fmt: skip
        """Summarize a plain, strided tensor and return its place."""
        if not self._free:
            block = np.empty((_BLOCK, columns.ROW_WIDTH))
            self._blocks.append(block)
            self._address = block.ctypes.data
            self._free = _BLOCK
        dtype, shape, device = x.dtype, x.shape, x.device
        code = READABLE_DTYPE_CODES.get(dtype)
        place = len(self._keys)
        if code is not None and self._summarize is not None and device.type == "cpu" and not x.is_neg():
            address = x.data_ptr()
            if not address and shape.numel():
                raise RuntimeError("the tensor has no memory")
            self._summarize(address, code, shape, x.stride(), self._address)
        else:
            with hidden_from_modes():
                if device.type == "cpu":
                    self._summarize_into(place, x)
                else:
                    self._copies.add(x, partial(self._summarize_into, place))
        self._address += _ROW_BYTES
        self._free -= 1
        key = (phase, microbatch, site, op, nth, output, parameter, source, dtype, shape, device)
        self._keys.append(_make_key(RowKey, key))
        return place

    def _summarize_into(self, place: int, x: Tensor) -> None:
        self._blocks[place // _BLOCK][place % _BLOCK] = summarize(x)
        if (read := self._readers.pop(place, None)) is not None:
            read(x, place)

    def read(self, x: Tensor, place: int, reader: Callable[[Tensor, int], None]) -> None:
        """Pass on the tensor of a row that was just added: at once, or its copy when that has arrived."""
        if x.is_cpu:
            reader(x, place)
        else:
            self._readers[place] = reader

    def deliver(self) -> None:
        """Wait for the copies that are on their way from devices, and read them."""
        self._copies.deliver()

    def note_introduced(self, place: int, error: IntroducedError) -> None:
        """Keep the error that the op of an event introduced."""
        if error.worst.is_cpu:
            self._errors[place] = (error.max_ulps, error.rms_ulps)
        else:
            self._copies.add(torch.stack((error.worst, error.mean_square)), partial(self._note_fetched, place))

    def _note_fetched(self, place: int, numbers: Tensor) -> None:
        worst, mean_square = numbers.tolist()
        self._errors[place] = (worst, math.sqrt(mean_square))

    def content_hash(self, place: int) -> int:
        """Return the hash of the event's tensor, which has been read."""
        return int(self._blocks[place // _BLOCK][place % _BLOCK, columns.HASH : columns.HASH + 1].view(np.uint64)[0])

    def numbers(self) -> npt.NDArray[np.float64]:
        """Return all rows so far, one line each; waits for devices."""
        self._copies.deliver()
        if not self._keys:
            return np.empty((0, columns.ROW_WIDTH))
        return np.concatenate(self._blocks)[: len(self._keys)]

    def keys(self) -> Sequence[RowKey]:
        """Return the keys of all rows so far."""
        return self._keys

    def to_columns(self, step: int, *, sites: Sequence[str], ops: Sequence[str], outputs: Sequence[str],
                   parameters: Sequence[str], sources: Sequence[str]) -> EventColumns:  # fmt: skip
        """Turn the rows into columns; the sequences name the codes used in the keys."""
        numbers = self.numbers()
        num_rows = len(self._keys)
        table = np.array([key[:_NUM_CODES] for key in self._keys], dtype=np.int32).reshape(num_rows, _NUM_CODES)
        codes = dict(zip(RowKey._fields, table.T, strict=False))
        counts = numbers[:, columns.NUM_NAN : columns.NUM_SUBNORMAL + 1].astype(np.int64)
        num_elements = np.fromiter((key.shape.numel() for key in self._keys), dtype=np.int64, count=num_rows)
        num_finite = num_elements * _numbers_per_element(self._keys) - counts[:, :3].sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = numbers[:, columns.SUM] / num_finite
        return EventColumns(
            step=np.full(num_rows, step, dtype=np.int32),
            microbatch=codes["microbatch"],
            phase=Interned(codes=codes["phase"], values=PHASES),
            site=Interned(codes=codes["site"], values=sites),
            op=Interned(codes=codes["op"], values=ops),
            nth=codes["nth"],
            output=Interned(codes=codes["output"], values=outputs),
            order=np.arange(num_rows, dtype=np.int32),
            parameter=Interned(codes=codes["parameter"], values=parameters),
            source=Interned(codes=codes["source"], values=sources),
            dtype=_intern([key.dtype for key in self._keys], lambda dtype: str(dtype).removeprefix("torch.")),
            shape=_intern([key.shape for key in self._keys], shape_to_text),
            device=_intern([key.device for key in self._keys], str),
            num_elements=num_elements,
            min=numbers[:, columns.MIN],
            max=numbers[:, columns.MAX],
            mean=mean,
            sum_abs=numbers[:, columns.SUM_ABS],
            l2=np.sqrt(numbers[:, columns.SUM_SQUARES]),
            num_nan=counts[:, 0],
            num_posinf=counts[:, 1],
            num_neginf=counts[:, 2],
            num_zero=counts[:, 3],
            num_subnormal=counts[:, 4],
            hash=np.ascontiguousarray(numbers[:, columns.HASH]).view(np.uint64),
            sketch=_to_float32(numbers[:, columns.SKETCH :]),
            histogram=self.histograms.column(num_rows),
            introduced_ulps=self._error_column(0),
            introduced_rms_ulps=self._error_column(1),
        )

    def _error_column(self, number: int) -> npt.NDArray[np.float32] | None:
        if not self._errors:
            return None
        values, missing = np.zeros(len(self._keys), dtype=np.float32), np.ones(len(self._keys), dtype=bool)
        for place, error in self._errors.items():
            values[place], missing[place] = error[number], False
        return np.ma.MaskedArray(values, mask=missing)


def _numbers_per_element(keys: Sequence[RowKey]) -> npt.NDArray[np.int64]:
    """Numbers per element: two for complex dtypes."""
    return np.fromiter((2 if key.dtype.is_complex else 1 for key in keys), dtype=np.int64, count=len(keys))


def _to_float32(sketch: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", under="ignore"):
        return sketch.astype(np.float32)


def _intern(values: Sequence[Any], to_text: Callable[[Any], str]) -> Interned:
    codes: dict[Any, int] = {}
    found = [codes.setdefault(value, len(codes)) for value in values]
    return Interned(codes=np.array(found, dtype=np.int32), values=[to_text(value) for value in codes])
