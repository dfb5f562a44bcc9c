"""A table on disk: parquet files that are each complete, numbered as they were written."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from roundoff.errors import RunFolderError, UsageError
from roundoff.runs.files import folder as names
from roundoff.runs.files.atomic import write_atomically
from roundoff.runs.files.schema import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which events are requested; None requests all.

    `step` is one or several. `site` and `op` are patterns with `*`, `?` and `[...]`; an op may carry its number,
    `aten.bmm#0`.
    """

    step: int | Collection[int] | None = None
    site: str | None = None
    phase: str | None = None
    op: str | None = None
    rank: int | None = None

    @property
    def columns(self) -> set[str]:
        """The columns that have to be read to decide."""
        wanted = {name for name in ("step", "site", "phase", "op") if getattr(self, name) is not None}
        return wanted | ({"nth"} if self._op_and_nth()[1] is not None else set())

    def may_hold(self, first_step: int, last_step: int) -> bool:
        """Whether rows of these steps can be among the requested ones."""
        if self.step is None:
            return True
        steps = self._sorted_steps()
        place = int(np.searchsorted(steps, first_step))
        return place < len(steps) and bool(steps[place] <= last_step)

    def filter(self, rows: pa.Table) -> pa.Table:
        """Return the requested rows; `rank` is decided by the file, not here."""
        op, nth = self._op_and_nth()
        keep = np.ones(rows.num_rows, dtype=bool)
        if self.step is not None:
            keep &= np.isin(rows["step"].to_numpy(), self._sorted_steps())
        if nth is not None:
            keep &= rows["nth"].to_numpy() == nth
        for name, pattern in (("site", self.site), ("phase", self.phase), ("op", op)):
            if pattern is not None:
                keep &= _matches(rows[name], pattern)
        return rows if keep.all() else rows.filter(pa.array(keep))

    def _sorted_steps(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        chosen = [self.step] if isinstance(self.step, int) else sorted(self.step or ())
        return np.array(chosen, dtype=np.int64)

    def _op_and_nth(self) -> tuple[str | None, int | None]:
        name, hash_sign, number = (self.op or "").rpartition("#")
        if not hash_sign or number == "*":
            return (name or self.op), None
        if not number.isdecimal():
            raise UsageError.explain(
                f"Invalid op '{self.op}'.", why="a number must follow '#'.", fix="write aten.bmm#0"
            )
        return name, int(number)


def _matches(column: pa.ChunkedArray, pattern: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Match every distinct string once: a million rows hold some hundred sites."""
    fitting = [text for text in column.unique().to_pylist() if fnmatch.fnmatchcase(text, pattern)]
    found = pc.is_in(column, value_set=pa.array(fitting, type=pa.string()))
    return np.asarray(found.to_numpy(), dtype=bool)


MAX_BUFFERED_ROWS = 1 << 16
"""More rows than this are written without waiting for a flush."""

MAX_PART_BYTES = 4 * 2**30
"""A part that claims to hold more than this when read is refused; ours hold some megabytes."""


class PartWriter:
    """Collects the rows of one table and one rank, and writes them as the next part."""

    def __init__(self, folder: Path, table: Table, *, rank: int) -> None:
        self._folder = folder
        self._table = table
        self._rank = rank
        self._next_part = 0
        self._pending: list[pa.Table] = []
        self._num_pending = 0

    def add(self, rows: pa.Table) -> Path | None:
        """Take rows; return the part if enough rows were pending to write one."""
        self._pending.append(rows)
        self._num_pending += rows.num_rows
        return self.flush() if self._num_pending > MAX_BUFFERED_ROWS else None

    def flush(self) -> Path | None:
        """Write what is pending as one part and return its path; None if nothing is.

        What could not be written, or was interrupted, stays pending.
        """
        if self._num_pending == 0:
            return None
        rows = self._pending[0] if len(self._pending) == 1 else pa.concat_tables(self._pending).unify_dictionaries()
        path = names.part_paths[self._table.name](self._folder, rank=self._rank, part=self._next_part)
        if self._next_part == 0:
            path.parent.mkdir(exist_ok=True)
        write_atomically(path, to_parquet(rows, self._table))
        self._next_part += 1
        self.forget()
        return path

    def forget(self) -> None:
        """Drop what is pending."""
        self._pending.clear()
        self._num_pending = 0


def to_parquet(rows: pa.Table, table: Table) -> memoryview:
    """Return the bytes of a parquet file with these rows.

    Strings take a dictionary, nothing else does; only the step keeps statistics, by which a reader skips whole parts;
    every page has a checksum, by which it notices damage.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=[c.name for c in table.columns if c.encoding is None],
        column_encoding={c.name: c.encoding for c in table.columns if c.encoding is not None},
        write_statistics=["step"],
        write_page_checksum=True,
        store_schema=False,
        row_group_size=MAX_BUFFERED_ROWS,
    )
    return memoryview(sink.getvalue())


def read_part(path: Path, table: Table, *, columns: Sequence[str], selection: Selection) -> pa.Table | None:
    """Read the selected rows of a part, or return None when the statistics of the step say that there are none.

    Nullable columns that the part lacks (an older version wrote it) are null; those it has beyond the table are left
    out.
    """
    needed = [name for name in table.names if name in columns or name in selection.columns]
    with _open(path) as file:
        groups = [i for i in range(file.num_row_groups) if selection.may_hold(*_step_bounds(file, i))]
        if not groups:
            return None
        present = [name for name in needed if name in file.schema_arrow.names]
        rows = _conform(file.read_row_groups(groups, columns=present), table, needed)
    return selection.filter(rows).select(list(columns))


def read_steps(path: Path) -> set[int]:
    """Return the steps that occur in a part; only the footer is read where all rows are of one step."""
    found: set[int] = set()
    with _open(path) as file:
        for group in range(file.num_row_groups):
            low, high = _step_bounds(file, group)
            column = [low] if low == high else file.read_row_group(group, columns=["step"])["step"].to_pylist()
            found.update(column)
    return found


@contextlib.contextmanager
def _open(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a part; whatever is wrong with it becomes a `RunFolderError` that names it."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            claimed = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
            if claimed > MAX_PART_BYTES:
                raise OSError(f"it claims to hold {claimed} bytes")
            yield file
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise RunFolderError.explain(
            f"'{path}' cannot be read.",
            why=f"it is cut short or damaged ({error}).",
            fix="take the file from a copy of the run, or delete it to read the rest.",
        ) from error


def _step_bounds(file: pq.ParquetFile, group: int) -> tuple[int, int]:
    place = file.schema_arrow.names.index("step")
    statistics = file.metadata.row_group(group).column(place).statistics
    if statistics is None or not statistics.has_min_max:
        return -(2**31), 2**31 - 1
    return statistics.min, statistics.max


def _conform(rows: pa.Table, table: Table, columns: Sequence[str]) -> pa.Table:
    fields = [table.arrow.field(name) for name in columns]
    arrays = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in fields
    ]
    for field, array in zip(fields, arrays, strict=True):
        if array.null_count and not field.nullable:
            raise ValueError(f"column '{field.name}' lacks values")
    return pa.Table.from_arrays(arrays, schema=pa.schema([field.with_nullable(True) for field in fields]))
