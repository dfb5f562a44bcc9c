"""Rows on their way into a run, column by column: numpy arrays, and strings as codes into a list.

An array for a nullable column may be a `numpy.ma.MaskedArray` (masked rows are null; of a two-dimensional one the
first entry of each row decides) or None (all rows are null). Everything is copied when it is handed to the writer, so
the arrays may be reused at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from roundoff.runs.files.schema import EVENTS, HASHES, PARAMETERS, Column, Table

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interned:
    """A column of strings: one int32 code per row, and what each code stands for; -1 is null.

    >>> Interned(codes=np.array([1, 1, -1], dtype=np.int32), values=["fc1", "fc2"]).to_list()
    ['fc2', 'fc2', None]
    """

    codes: Array
    values: Sequence[str]

    @classmethod
    def constant(cls, value: str, num_rows: int) -> Interned:
        """Return the same string for every row."""
        return cls(codes=np.zeros(num_rows, dtype=np.int32), values=[value])

    @classmethod
    def of(cls, strings: Sequence[str | None]) -> Interned:
        """Return the strings given one by one; slow, for small tables."""
        codes: dict[str, int] = {}
        found = [-1 if s is None else codes.setdefault(s, len(codes)) for s in strings]
        return cls(codes=np.array(found, dtype=np.int32), values=list(codes))

    def to_list(self) -> list[str | None]:
        """Return the string of every row."""
        return [None if code < 0 else self.values[code] for code in self.codes]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumns:
    """Events, one row each; the columns of `schema.EVENTS`."""

    step: Array
    microbatch: Array
    phase: Interned
    site: Interned
    op: Interned
    nth: Array
    output: Interned
    order: Array
    dtype: Interned
    shape: Interned
    device: Interned
    num_elements: Array
    min: Array
    max: Array
    mean: Array
    sum_abs: Array
    l2: Array
    num_nan: Array
    num_posinf: Array
    num_neginf: Array
    num_zero: Array
    num_subnormal: Array
    hash: Array
    parameter: Interned | None = None
    source: Interned | None = None
    sketch: Array | None = None  # (rows, 16) float32
    histogram: Array | None = None  # (rows, 64) uint16
    introduced_ulps: Array | None = None
    introduced_rms_ulps: Array | None = None

    def to_arrow(self) -> pa.Table:
        """Copy the rows into a table with the columns of `schema.EVENTS`."""
        return _to_arrow(self, EVENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterColumns:
    """Norms and shares, one row per parameter and watched step; the columns of `schema.PARAMETERS`."""

    step: Array
    parameter: Interned
    site: Interned
    num_elements: Array
    l2: Array
    absmax: Array
    grad_l2: Array | None = None
    grad_absmax: Array | None = None
    grad_zero_share: Array | None = None
    grad_subnormal_share: Array | None = None
    changed_fraction: Array | None = None
    update_l2: Array | None = None

    def to_arrow(self) -> pa.Table:
        """Copy the rows into a table with the columns of `schema.PARAMETERS`."""
        return _to_arrow(self, PARAMETERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class HashColumns:
    """Hashes of inputs, parameters, gradients and buffers; the columns of `schema.HASHES`."""

    step: Array
    microbatch: Array
    kind: Interned
    name: Interned
    hash: Array

    def to_arrow(self) -> pa.Table:
        """Copy the rows into a table with the columns of `schema.HASHES`."""
        return _to_arrow(self, HASHES)


def _to_arrow(columns: EventColumns | ParameterColumns | HashColumns, table: Table) -> pa.Table:
    num_rows = len(columns.step)
    arrays = [_arrow_array(getattr(columns, column.name), column, num_rows) for column in table.columns]
    fields = [pa.field(c.name, array.type, nullable=c.nullable) for c, array in zip(table.columns, arrays, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _arrow_array(value: Array | Interned | None, column: Column, num_rows: int) -> pa.Array:
    if value is None:
        assert column.nullable, column.name
        return pa.nulls(num_rows, column.arrow_type)
    if isinstance(value, Interned):
        return _dictionary(value, column)
    if column.type.startswith("fixed"):
        return _fixed_size_binary(value, column)
    mask = np.ma.getmaskarray(value).copy() if np.ma.isMaskedArray(value) else None
    copied = np.array(np.ma.getdata(value), dtype=column.type, copy=True)
    return pa.array(copied, type=column.arrow_type, mask=mask)


def _dictionary(strings: Interned, column: Column) -> pa.DictionaryArray:
    """Keep only the values that occur: a list that grows over a whole run must not be in every part."""
    codes = np.asarray(strings.codes)
    counts = np.bincount(codes + 1, minlength=len(strings.values) + 1)
    assert column.nullable or counts[0] == 0, f"null in {column.name}"
    used = np.flatnonzero(counts[1:])
    renumbered = np.zeros(len(strings.values) + 1, dtype=np.int32)
    renumbered[used + 1] = np.arange(len(used), dtype=np.int32)
    mask = codes < 0 if counts[0] else None
    indices = pa.array(renumbered[codes + 1], mask=mask)
    values = pa.array([strings.values[i] for i in used.tolist()], type=pa.string())
    return pa.DictionaryArray.from_arrays(indices, values, safe=False)


def _fixed_size_binary(value: Array, column: Column) -> pa.Array:
    plain = np.ma.getdata(value)
    assert plain.ndim == 2
    assert plain.shape[1] * plain.itemsize == column.arrow_type.byte_width, column.name
    little_endian = np.array(plain, dtype=plain.dtype.newbyteorder("<"), order="C", copy=True)
    validity = None
    if np.ma.isMaskedArray(value):
        present = ~np.ma.getmaskarray(value)[:, 0]
        validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    buffers = [validity, pa.py_buffer(little_endian)]
    return pa.FixedSizeBinaryArray.from_buffers(column.arrow_type, len(plain), buffers)
