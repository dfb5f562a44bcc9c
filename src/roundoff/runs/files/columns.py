"""Rows on their way into a run and out of it, column by column: numpy arrays, and strings as codes into a list.

For a nullable column a `numpy.ma.MaskedArray` may be handed to the writer (masked rows are null; of a two-dimensional
one the first entry of each row decides) or None (all rows are null). Everything is copied, so the arrays may be reused
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roundoff.errors import UsageError
from roundoff.runs.files.schema import EVENTS, HASHES, PARAMETERS, Column, Table

if TYPE_CHECKING:
    import pandas

Array: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = Array | slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Interned:
    """A column of strings: one int32 code per row, and the string of each code; -1 is null.

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

    @property
    def is_null(self) -> Mask:
        """Which rows have no string."""
        return np.asarray(self.codes < 0)

    def to_list(self) -> list[Any]:
        """Return the string of every row, None where there is none."""
        found: list[Any] = np.array([*self.values, None], dtype=object)[self.codes].tolist()
        return found

    def unique(self) -> list[Any]:
        """Return the strings that occur."""
        return [self.values[code] for code in np.unique(self.codes).tolist() if code >= 0]

    def matches(self, predicate: Callable[[str], bool]) -> Mask:
        """Return which rows hold a string of some kind; each distinct one is looked at once."""
        fits = np.array([*map(predicate, self.values), False], dtype=bool)
        return np.asarray(fits[self.codes])

    def equals(self, text: str) -> Mask:
        """Return which rows hold this string."""
        return self.matches(lambda value: value == text)

    def starts_with(self, text: str) -> Mask:
        """Return which rows hold a string that begins with this one."""
        return self.matches(lambda value: value.startswith(text))

    def take(self, places: Places) -> Interned:
        """Return some of the rows."""
        return Interned(codes=self.codes[places], values=self.values)

    def without_unused(self) -> Interned:
        """Keep only the values that occur: a list that grows over a whole run must not be in every part."""
        used = np.unique(self.codes)
        used = used[used >= 0]
        renumbered = np.full(len(self.values) + 1, -1, dtype=np.int32)
        renumbered[used] = np.arange(len(used), dtype=np.int32)
        return Interned(codes=renumbered[self.codes], values=[self.values[i] for i in used.tolist()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """A column of numbers, or of bytes (as `V64`); `nulls` says which rows have none, if any has none."""

    array: Array
    nulls: Mask | None = None

    @property
    def is_null(self) -> Mask:
        """Which rows have no value."""
        return np.zeros(len(self.array), dtype=bool) if self.nulls is None else self.nulls

    def to_list(self) -> list[Any]:
        """Return the value of every row, None where there is none."""
        found: list[Any] = self.array.tolist()
        for place in np.flatnonzero(self.is_null).tolist():
            found[place] = None
        return found

    def unique(self) -> list[Any]:
        """Return the values that occur, in order."""
        found: list[Any] = np.unique(self.array[~self.is_null]).tolist()
        return found

    def take(self, places: Places) -> Values:
        """Return some of the rows."""
        return Values(array=self.array[places], nulls=None if self.nulls is None else self.nulls[places])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a table, column by column."""

    columns: Mapping[str, Values | Interned]
    num_rows: int

    @classmethod
    def concat(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of several tables with the same columns, one after the other."""
        columns = {name: concat_values([part[name] for part in parts]) for name in parts[0].columns}
        return cls(columns=columns, num_rows=sum(part.num_rows for part in parts))

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, name: str) -> Values | Interned:
        return self.columns[name]

    def texts(self, name: str) -> Interned:
        """Return a column of strings."""
        column = self.columns[name]
        assert isinstance(column, Interned), name
        return column

    def numbers(self, name: str) -> Array:
        """Return a column of numbers or bytes as an array; in one of floats null becomes NaN."""
        column = self.columns[name]
        assert isinstance(column, Values), name
        if column.nulls is None or column.array.dtype.kind != "f":
            return column.array
        return np.where(column.nulls, np.nan, column.array)

    def take(self, places: Places) -> Rows:
        """Return some of the rows: those that a mask, a slice or numbers name."""
        num_rows = len(np.arange(self.num_rows)[places])
        return Rows(columns={name: column.take(places) for name, column in self.columns.items()}, num_rows=num_rows)

    def select(self, names: Sequence[str]) -> Rows:
        """Return some of the columns."""
        return Rows(columns={name: self.columns[name] for name in names}, num_rows=self.num_rows)

    def with_numbers(self, **arrays: Array) -> Rows:
        """Return the rows with further columns, which come first."""
        added = {name: Values(array=array) for name, array in arrays.items()}
        return Rows(columns={**added, **self.columns}, num_rows=self.num_rows)

    def to_list(self) -> list[dict[str, Any]]:
        """Return every row by the names of the columns."""
        lists = [column.to_list() for column in self.columns.values()]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*lists, strict=True)]

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame; texts are categories, sketches and histograms are arrays.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise UsageError.explain("pandas is not installed.", why=f"{error}.", fix="pip install pandas") from error
        columns: dict[str, Any] = {}
        for name, column in self.columns.items():
            if isinstance(column, Interned):
                texts = column.without_unused()
                columns[name] = pandas.Categorical.from_codes(texts.codes, categories=list(texts.values))
            elif column.array.dtype.kind == "V":
                of = np.dtype(np.float32 if name == "sketch" else np.uint16)
                arrays = [
                    None if null else item
                    for null, item in zip(column.is_null, _as_arrays(column.array, of), strict=True)
                ]
                columns[name] = pandas.Series(arrays, dtype=object)
            else:
                columns[name] = self.numbers(name)
        return pandas.DataFrame(columns)


def _as_arrays(column: Array, of: np.dtype[Any]) -> Array:
    """Return the numbers that bytes hold, a row for each."""
    return np.ascontiguousarray(column).view(of).reshape(len(column), column.dtype.itemsize // of.itemsize)


def no_values(column: Column, num_rows: int) -> Values | Interned:
    """Return a column of nulls."""
    if column.dtype is None:
        return Interned(codes=np.full(num_rows, -1, dtype=np.int32), values=[])
    return Values(array=np.zeros(num_rows, dtype=column.dtype), nulls=np.ones(num_rows, dtype=bool))


def concat_values(parts: Sequence[Values | Interned]) -> Values | Interned:
    """Return the rows of several columns, one after the other."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Interned):
        return _concat_texts([part for part in parts if isinstance(part, Interned)])
    numbers = [part for part in parts if isinstance(part, Values)]
    has_nulls = any(part.nulls is not None for part in numbers)
    nulls = np.concatenate([part.is_null for part in numbers]) if has_nulls else None
    return Values(array=np.concatenate([part.array for part in numbers]), nulls=nulls)


def _concat_texts(parts: Sequence[Interned]) -> Interned:
    known: dict[str, int] = {}
    codes, before, renumbered = [], None, np.array([-1], dtype=np.int32)
    for part in parts:
        if part.values != before:  # parts of one run mostly have the same
            before = part.values
            numbers = [*(known.setdefault(text, len(known)) for text in before), -1]
            renumbered = np.array(numbers, dtype=np.int32)
        codes.append(renumbered[part.codes])
    return Interned(codes=np.concatenate(codes), values=list(known))


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

    def to_rows(self) -> Rows:
        """Copy the rows, with the columns of `schema.EVENTS`."""
        return _to_rows(self, EVENTS)


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

    def to_rows(self) -> Rows:
        """Copy the rows, with the columns of `schema.PARAMETERS`."""
        return _to_rows(self, PARAMETERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class HashColumns:
    """Hashes of inputs, parameters, gradients and buffers; the columns of `schema.HASHES`."""

    step: Array
    microbatch: Array
    kind: Interned
    name: Interned
    hash: Array

    def to_rows(self) -> Rows:
        """Copy the rows, with the columns of `schema.HASHES`."""
        return _to_rows(self, HASHES)


def _to_rows(columns: EventColumns | ParameterColumns | HashColumns, table: Table) -> Rows:
    num_rows = len(columns.step)
    copied = {column.name: _copy(getattr(columns, column.name), column, num_rows) for column in table.columns}
    assert all(len(column.is_null) == num_rows for column in copied.values()), "columns of different lengths"
    return Rows(columns=copied, num_rows=num_rows)


def _copy(value: Array | Interned | None, column: Column, num_rows: int) -> Values | Interned:
    if value is None:
        assert column.nullable, column.name
        return no_values(column, num_rows)
    if isinstance(value, Interned):
        assert column.nullable or not value.is_null.any(), f"null in {column.name}"
        return value.without_unused()
    nulls = np.ma.getmaskarray(value).copy() if np.ma.isMaskedArray(value) else None
    plain = np.ma.getdata(value)
    if column.dtype is None or column.num_bytes is None:
        return Values(array=np.array(plain, dtype=column.dtype, copy=True), nulls=nulls)
    assert plain.ndim == 2
    assert plain.shape[1] * plain.itemsize == column.num_bytes, column.name
    little_endian = np.array(plain, dtype=plain.dtype.newbyteorder("<"), order="C", copy=True)
    array = little_endian.view(column.dtype).reshape(num_rows)
    return Values(array=array, nulls=None if nulls is None else nulls[:, 0].copy())
