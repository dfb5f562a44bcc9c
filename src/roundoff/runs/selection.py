"""Which events are asked for."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roundoff.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which events are asked for; None asks for all.

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
        """Whether rows of these steps can be among those asked for."""
        if self.step is None:
            return True
        steps = self._sorted_steps()
        place = int(np.searchsorted(steps, first_step))
        return place < len(steps) and bool(steps[place] <= last_step)

    def filter(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are asked for; `rank` is decided by the file, not here."""
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
                f"Op '{self.op}' cannot be looked for.", why="a number stands after '#'.", fix="write aten.bmm#0"
            )
        return name, int(number)


def _matches(column: pa.ChunkedArray, pattern: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Match every distinct string once: a million rows hold some hundred sites."""
    fitting = [text for text in column.unique().to_pylist() if fnmatch.fnmatchcase(text, pattern)]
    found = pc.is_in(column, value_set=pa.array(fitting, type=pa.string()))
    return np.asarray(found.to_numpy(), dtype=bool)
