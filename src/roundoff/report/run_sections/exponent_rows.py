"""The tensors whose exponent histograms a page shows: results, gradients and weights of the chosen steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc

from roundoff.diagnose.exponents import FORMATS, Counts, CutOff, Range, cut_offs, fixed_range, range_of
from roundoff.diagnose.numbers import format_of, largest_of
from roundoff.report.run_sections.chosen_steps import ChosenStep

Kind = Literal["output", "gradient", "weight"]
MOST_TENSORS = 1200
"""Of all steps together; about 200 bytes each."""
_COLUMNS = (
    "step", "rank", "microbatch", "phase", "site", "op", "nth", "output", "order", "parameter", "dtype", "shape",
    "num_elements", "min", "max", "num_nan", "num_posinf", "num_neginf", "num_zero", "histogram",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorExponents:
    """One tensor: where it is from, its histogram, and what each format would cut off."""

    step: int
    rank: int
    kind: Kind
    site: str
    name: str
    """The op, or the parameter."""
    dtype: str
    shape: str
    absmax: float
    num_elements: int
    num_nonfinite: int
    num_zero: int
    counts: Counts
    cuts: Sequence[CutOff]
    """By `FORMATS`, then fixed point."""
    fixed: Range | None

    @property
    def badness(self) -> tuple[bool, float, float, float]:
        """What it is ranked by: shares that fp16, e5m2 and e4m3 would lose or not hold; a single number comes last."""
        fp16, e5m2, e4m3 = (cut.beyond + cut.lost for cut in self.cuts[1 : len(FORMATS)])
        return self.num_elements > 1, fp16, e5m2, e4m3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentRows:
    """The tensors of a page, and what was left out to get there."""

    tensors: Sequence[TensorExponents]
    notes: Sequence[str]


def exponent_rows(steps: Sequence[ChosenStep], *, num_bits: int) -> ExponentRows:
    """Return tensors with histograms, in their order, those of telling steps first in line for the room there is."""
    found: list[TensorExponents] = []
    without: set[int] = set()
    shown = left_out = 0
    for step in sorted(steps, key=lambda each: not each.is_telling):
        if id(step.holder) in without:
            continue
        room = MOST_TENSORS - len(found)
        rows = _rows(step) if room else []
        if room and not rows:
            without.add(id(step.holder))  # histograms are recorded of every step or of none
        kept = rows if len(rows) <= room else [rows[place] for place in _even(len(rows), room)]
        found += [_tensor(row, num_bits=num_bits) for row in kept]
        shown += bool(rows)
        left_out += len(rows) - len(kept)
    num_steps = sum(id(step.holder) not in without for step in steps)
    notes = []
    if left_out:
        notes.append(f"{left_out} tensors of the last of these steps are left out, at even distances.")
    if shown < num_steps:
        notes.append(f"Histograms of {shown} of {num_steps} steps are shown: there is no room for more.")
    return ExponentRows(tensors=sorted(found, key=lambda each: (each.step, each.rank)), notes=notes)


def _rows(step: ChosenStep) -> list[dict[str, Any]]:
    """Read the tensors of a step that have a histogram; of a weight that was seen several times the first."""
    table = step.holder.events(step=step.step, rank=step.rank, columns=_COLUMNS)
    table = table.filter(pc.is_valid(table["histogram"])).sort_by("order")
    is_result = pc.and_(pc.starts_with(table["output"], "output"), pc.not_equal(table["phase"], "optimizer"))
    rows: dict[object, dict[str, Any]] = {}
    for row in table.filter(is_result).to_pylist():
        rows.setdefault(row["parameter"] if row["op"] == "parameter" else len(rows), row)
    return list(rows.values())


def _even(num: int, most: int) -> list[int]:
    return sorted(set(np.linspace(0, num - 1, most).astype(int).tolist())) if most > 0 else []


def _infinite_share(row: dict[str, Any]) -> float:
    """Return how many of the elements other than 0 and NaN are infinite."""
    num = int(row["num_posinf"] + row["num_neginf"])
    return num / max(1, int(row["num_elements"] - row["num_zero"] - row["num_nan"]))


def _largest(dtype: str) -> float:
    name = format_of(dtype)
    return largest_of(name) if name != dtype else math.inf


def _kind(row: dict[str, Any]) -> Kind:
    if row["op"] == "parameter":
        return "weight"
    return "gradient" if row["op"] == "gradient" or row["phase"] == "backward" else "output"


def _tensor(row: dict[str, Any], *, num_bits: int) -> TensorExponents:
    ends = [abs(end) for end in (row["min"], row["max"]) if isinstance(end, float) and end == end]
    absmax = max(ends, default=0.0)
    counts = np.frombuffer(row["histogram"], dtype="<u2")
    fixed = fixed_range(absmax, num_bits=num_bits)
    ranges = [*map(range_of, FORMATS), *([fixed] if fixed is not None else [])]
    kind = _kind(row)
    microbatch = f", microbatch {row['microbatch']}" if row["microbatch"] else ""
    name = row["parameter"] if row["op"] in ("parameter", "gradient") else f"{row['op']}#{row['nth']}"
    output = "" if row["output"] == "output0" else f":{row['output']}"
    return TensorExponents(
        step=int(row["step"]),
        rank=int(row["rank"]),
        kind=kind,
        site=str(row["site"]),
        name=f"{name}{output}{microbatch}",
        dtype=str(row["dtype"]),
        shape=str(row["shape"]),
        absmax=absmax,
        num_elements=row["num_elements"],
        num_nonfinite=row["num_nan"] + row["num_posinf"] + row["num_neginf"],
        num_zero=row["num_zero"],
        counts=counts,
        cuts=cut_offs(
            counts,
            absmax=absmax,
            ranges=ranges,
            infinite_share=_infinite_share(row),
            own_largest=_largest(row["dtype"]),
        ),
        fixed=fixed,
    )
