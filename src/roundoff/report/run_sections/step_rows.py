"""The results of the chosen steps, read all at once and thinned to what a page has room for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roundoff.diagnose.bad_flow import BadFlow, bad_flow
from roundoff.report.run_sections.chosen_steps import ChosenStep, room_for

Mask: TypeAlias = npt.NDArray[np.bool_]

MOST_FLOWS = 12
"""In so many steps bad values are followed from op to op."""
_AROUND = 10
"""So many results on either side of the origin are kept."""
_COLUMNS = (
    "step", "microbatch", "phase", "site", "op", "nth", "output", "order", "parameter", "source", "dtype", "shape",
    "num_elements", "min", "max", "num_nan", "num_posinf", "num_neginf", "num_zero", "num_subnormal", "introduced_ulps",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The results of one step in the order in which they came about, as far as there is room for them."""

    chosen: ChosenStep
    rows: pa.Table
    """With the further columns `place` (among all results of the step), `absmax` and `nonfinite`."""
    num_results: int
    flow: BadFlow | None
    is_flow_known: bool
    """Whether bad values were followed, where there are some."""


def step_rows(steps: Sequence[ChosenStep]) -> list[StepRows]:
    """Read the results of all steps, one pass over each folder, and keep of each what is bad, extreme or even."""
    tables = _tables(steps)
    room = room_for(steps, [table.num_rows for table in tables])
    by_weight = sorted(range(len(steps)), key=lambda place: not steps[place].is_telling)
    bad = [place for place in by_weight if _has_bad(tables[place])]
    flows = {place: _flow(steps[place]) for place in bad[:MOST_FLOWS]}
    return [
        StepRows(
            chosen=steps[place],
            rows=_thinned(table, most=room[place], flow=flows.get(place)),
            num_results=table.num_rows,
            flow=flows.get(place),
            is_flow_known=place in flows or place not in bad,
        )
        for place, table in enumerate(tables)
    ]


def _flow(step: ChosenStep) -> BadFlow | None:
    return bad_flow(step.holder, step=step.step, rank=step.rank)


def _tables(steps: Sequence[ChosenStep]) -> list[pa.Table]:
    """Return the results of each step; steps of one folder are read together."""
    found: dict[int, pa.Table] = {}
    holders = {id(step.holder): step.holder for step in steps}
    for key, holder in holders.items():
        mine = [place for place, step in enumerate(steps) if id(step.holder) == key]
        table = holder.events(step=sorted({steps[place].step for place in mine}), columns=_COLUMNS)
        table = table.filter(pc.starts_with(table["output"], "output")).combine_chunks()
        keys = {(steps[place].step, steps[place].rank): place for place in mine}
        for at, rows in _split(table):
            if at in keys:
                found[keys[at]] = _measured(rows)
        found |= {place: _measured(table.slice(0, 0)) for place in mine if place not in found}
    return [found[place] for place in range(len(steps))]


def _split(table: pa.Table) -> list[tuple[tuple[int, int], pa.Table]]:
    """Return (step, rank) and its rows, in their order within the step."""
    if not table.num_rows:
        return []
    steps, ranks = table["step"].to_numpy(), table["rank"].to_numpy()
    places = np.lexsort((table["order"].to_numpy(), ranks, steps))
    keys = np.stack([steps[places], ranks[places]])
    starts = [0, *(np.flatnonzero(np.any(np.diff(keys), axis=0)) + 1).tolist(), len(places)]
    ordered = table.take(pa.array(places))
    return [
        ((int(keys[0, begin]), int(keys[1, begin])), ordered.slice(begin, end - begin))
        for begin, end in itertools.pairwise(starts)
    ]


def _measured(rows: pa.Table) -> pa.Table:
    absmax = np.fmax(np.abs(rows["min"].to_numpy()), np.abs(rows["max"].to_numpy()))
    nonfinite = pc.add(pc.add(rows["num_nan"], rows["num_posinf"]), rows["num_neginf"])
    added: dict[str, Any] = {"place": np.arange(rows.num_rows), "absmax": absmax, "nonfinite": nonfinite}
    for name, values in added.items():
        rows = rows.append_column(name, values if isinstance(values, pa.ChunkedArray) else pa.array(values))
    return rows


def _has_bad(rows: pa.Table) -> bool:
    return bool(pc.any(pc.greater(rows["nonfinite"], 0)).as_py())


def _thinned(rows: pa.Table, *, most: int, flow: BadFlow | None) -> pa.Table:
    """Keep what matters, then the largest magnitudes, then results at even distances, until `most` are kept."""
    if rows.num_rows <= most:
        return rows
    orders, absmax = rows["order"].to_numpy(), rows["absmax"].to_numpy()
    wanted = np.zeros(rows.num_rows)
    even = np.linspace(0, rows.num_rows - 1, max(2, most // 2)).astype(int)
    wanted[even] = 1
    largest = np.argsort(-np.nan_to_num(absmax, nan=0.0))[: most // 4]
    wanted[largest] = 2
    wanted[rows["nonfinite"].to_numpy() > 0] = 3
    if flow is not None and flow.start is not None:
        start = int(np.searchsorted(orders, flow.start))
        wanted[np.isin(orders, list(flow.came_from))] = 4
        wanted[max(0, start - _AROUND) : start + _AROUND] = 5
        wanted[orders == flow.start] = 6
    # A stable sort: among those that matter alike the earlier ones are kept.
    kept = np.sort(np.argsort(-wanted, kind="stable")[:most])
    return rows.take(pa.array(kept))
