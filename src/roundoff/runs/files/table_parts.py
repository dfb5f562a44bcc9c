"""A table on disk: parquet files that are each complete, numbered as they were written."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roundoff.errors import RunFolderError, UsageError
from roundoff.files import make_folder, open_reading, write_atomically
from roundoff.runs.files import folder as names
from roundoff.runs.files.columns import Rows
from roundoff.runs.files.parquet import ParquetFile, to_parquet
from roundoff.runs.files.schema import EVENTS, Table


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

    def filter(self, rows: Rows) -> Rows:
        """Return the requested rows; `rank` is decided by the file, not here."""
        op, nth = self._op_and_nth()
        keep = np.ones(rows.num_rows, dtype=bool)
        if self.step is not None:
            keep &= np.isin(rows.numbers("step"), self._sorted_steps())
        if nth is not None:
            keep &= rows.numbers("nth") == nth
        for name, pattern in (("site", self.site), ("phase", self.phase), ("op", op)):
            if pattern is not None:
                keep &= rows.texts(name).matches(functools.partial(_fits, pattern))
        return rows if keep.all() else rows.take(keep)

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


def _fits(pattern: str, text: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern)


MAX_BUFFERED_ROWS = 1 << 16
"""More rows than this are written without waiting for a flush."""
_MAX_PART_ROWS = 1 << 17
"""More rows than this are written as several parts: the reader would take a larger one for damaged."""


class PartWriter:
    """Collects the rows of one table and one rank, and writes them as the next part."""

    def __init__(self, folder: Path, table: Table, *, rank: int) -> None:
        self.folder = folder
        self._table = table
        self._rank = rank
        self._next_part = 0
        self._pending: list[Rows] = []
        self._num_pending = 0

    def add(self, rows: Rows) -> Path | None:
        """Take rows; return the part if enough rows were pending to write one."""
        self._pending.append(rows)
        self._num_pending += rows.num_rows
        return self.flush() if self._num_pending > MAX_BUFFERED_ROWS else None

    def flush(self) -> Path | None:
        """Write what is pending and return the path of the (last) part; None if nothing is.

        What could not be written, or was interrupted, stays pending.
        """
        path = None
        while self._num_pending:
            rows = Rows.concat(self._pending)
            path = names.part_paths[self._table.name](self.folder, rank=self._rank, part=self._next_part)
            if self._next_part == 0:
                make_folder(path.parent)
            write_atomically(path, to_parquet(rows.take(slice(_MAX_PART_ROWS)), self._table))
            self._next_part += 1
            rest = rows.take(slice(_MAX_PART_ROWS, None))
            self._pending, self._num_pending = [rest] * bool(rest.num_rows), rest.num_rows
        return path

    def forget(self) -> None:
        """Drop what is pending."""
        self._pending.clear()
        self._num_pending = 0


def read_part(path: Path, table: Table, *, columns: Sequence[str], selection: Selection) -> Rows | None:
    """Read the selected rows of a part, or return None when the statistics of the step say that there are none.

    Nullable columns that the part lacks (an older version wrote it) are null; those it has beyond the table are left
    out.
    """
    needed = [column for column in table.columns if column.name in columns or column.name in selection.columns]
    with _open(path) as file:
        groups = [i for i in range(file.num_groups) if selection.may_hold(*file.step_bounds(i))]
        if not groups:
            return None
        rows = file.read(groups, needed)
    return selection.filter(rows).select(columns)


def read_steps(path: Path) -> set[int]:
    """Return the steps that occur in a part; only the footer is read where all rows are of one step."""
    found: set[int] = set()
    with _open(path) as file:
        for group in range(file.num_groups):
            low, high = file.step_bounds(group)
            found.update([low] if low == high else file.read([group], [EVENTS.columns[0]])["step"].unique())
    return found


@contextlib.contextmanager
def _open(path: Path) -> Iterator[ParquetFile]:
    """Open a part; whatever is wrong with it becomes a `RunFolderError` that names it."""
    try:
        with os.fdopen(open_reading(path), "rb") as file:
            yield ParquetFile(file)
    except (OSError, ValueError, KeyError, IndexError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RunFolderError.explain(
            f"'{path}' cannot be read.",
            why=f"it is cut short or damaged ({why}).",
            fix="take the file from a copy of the run, or delete it to read the rest.",
        ) from error
