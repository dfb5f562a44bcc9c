"""One recorded step at a time: its ops in order, the origin of bad values, and where they spread."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from roundoff.diagnose.diagnosis import RunView
from roundoff.diagnose.nonfinite.origin import BadFlow, bad_flow
from roundoff.diagnose.wording import FORMATS, largest_of
from roundoff.formats import SmallFloat, format_named
from roundoff.report.markup import Html, tag
from roundoff.report.run_page.section import ChosenStep, Section, choose_steps, room_for
from roundoff.runs import JsonValue, Rows, script_words

Mask: TypeAlias = npt.NDArray[np.bool_]

MAX_FLOWS = 12
"""Bad values are traced from op to op in at most this many steps."""
_AROUND = 10
"""This many results on either side of the origin are kept."""
_COLUMNS = (
    "step", "microbatch", "phase", "site", "op", "nth", "output", "order", "parameter", "source", "dtype", "shape",
    "num_elements", "min", "max", "num_nan", "num_posinf", "num_neginf", "num_zero", "num_subnormal", "introduced_ulps",
)  # fmt: skip


LIMITS = ("fp32", "bf16", "fp16", "e5m2", "e4m3")
"""The formats whose range can be drawn over a step."""
_NAMED = ("phase", "site", "op", "dtype", "shape", "source", "parameter")
"""Columns with few distinct texts: each is listed once, rows refer to it by number."""


def steps_section(view: RunView) -> Section:
    """Show the steps that were recorded or replayed; say so where there is none."""
    steps, notes = choose_steps(view)
    if not steps:
        command = f"roundoff record --steps 0 {script_words(view.run.info)}"
        words = f"No step was recorded, so there are no ops to show. To record one:  {command}"
        return Section(key="steps", title="Ops of a step", body=tag("p", words))
    found = step_rows(steps)
    return Section(
        key="steps",
        title="Ops of a step",
        short="Ops",
        body=_body(found, first=_first(view, found)),
        data={"steps": {"limits": _limits(), **_values(found)}},
        thinned=[*notes, *_left_out(found)],
    )


def _first(view: RunView, found: Sequence[StepResults]) -> int:
    """Return the place of the step that is shown first: the verdict's, or one with an origin, or the first."""
    mentioned = [(finding.step, finding.rank or 0) for finding in view.findings]
    places = {(each.chosen.step, each.chosen.rank): place for place, each in enumerate(found)}
    origins = (place for place, each in enumerate(found) if each.flow is not None and each.flow.start is not None)
    return next((places[at] for at in mentioned if at in places), next(origins, 0))


def _body(found: Sequence[StepResults], *, first: int) -> Html:
    options = [tag("option", _label(each), value=place, selected=place == first) for place, each in enumerate(found)]
    narrow = any("16" in name for each in found for name in each.rows["dtype"].unique())
    formats = [tag("option", name, selected=name == ("fp16" if narrow else "none")) for name in ("none", *LIMITS)]
    controls = tag(
        "p",
        tag("label", "Step ", tag("select", *options, id="step-choice")),
        tag("label", "Limits of ", tag("select", *formats, id="step-limits")),
        tag("button", "Jump to the origin", type="button", id="step-origin", hidden=True),
        class_="controls",
        hidden=True,
    )
    words = "The largest magnitude of each result, in the order of computation; non-finite results are at the top."
    flow = "How the bad values spread: from the origin through every result that contains them, site by site."
    return tag(
        "div",
        controls,
        tag("p", id="step-words", aria_live="polite"),
        _picture("step-chart", words, height=380),
        _picture("step-flow", flow, height=300, hidden=True),
        tag("div", id="step-table"),
        tag("noscript", tag("p", "Showing the ops of a step needs JavaScript. roundoff runs show prints them.")),
        id="step-view",
    )


def _picture(name: str, words: str, *, height: int, hidden: bool = False) -> Html:
    place = tag("div", class_="plot", id=name, role="img", aria_label=words, data_height=height)
    return tag("figure", place, tag("figcaption", words), class_="chart", id=f"{name}-figure", hidden=hidden)


def _label(each: StepResults) -> str:
    parts = [f"step {each.chosen.step}"]
    parts += [f"rank {each.chosen.rank}"] if each.chosen.rank else []
    parts += ["replayed"] if each.chosen.is_replay else []
    parts += ["not finite"] if each.flow is not None and each.flow.start is not None else []
    return ", ".join(parts)


def _limits() -> dict[str, JsonValue]:
    """Return the largest and the smallest normal number of each format."""
    found: dict[str, JsonValue] = {}
    for name in LIMITS:
        form = format_named(name)
        assert isinstance(form, SmallFloat)
        found[name] = {"largest": largest_of(name), "smallest": form.smallest_normal}
    return found


def _values(found: Sequence[StepResults]) -> dict[str, JsonValue]:
    codes: dict[str, dict[str, int]] = {name: {"": 0} for name in _NAMED}
    steps = [_step(each, codes) for each in found]
    names: dict[str, JsonValue] = {name: list(known) for name, known in codes.items()}
    formats: dict[str, JsonValue] = dict(FORMATS)
    return {"names": names, "formats": formats, "steps": steps}


def _step(each: StepResults, codes: dict[str, dict[str, int]]) -> dict[str, JsonValue]:
    rows = each.rows
    columns: dict[str, JsonValue] = {
        name: [codes[name].setdefault(text or "", len(codes[name])) for text in rows[name].to_list()] for name in _NAMED
    }
    elements = rows["num_elements"].to_list()
    columns |= {name: rows[name].to_list() for name in ("place", "nth", "nonfinite", "absmax")}
    columns |= {
        short: [count / max(1, size) for count, size in zip(rows[name].to_list(), elements, strict=True)]
        for short, name in (("zero", "num_zero"), ("subnormal", "num_subnormal"))
    }
    if any(rows["microbatch"].to_list()):
        columns["microbatch"] = rows["microbatch"].to_list()
    introduced = rows["introduced_ulps"].to_list()
    if any(error is not None and math.isfinite(error) for error in introduced):
        columns["introduced"] = introduced
    return {
        "label": _label(each),
        "step": each.chosen.step,
        "rank": each.chosen.rank,
        "num_results": each.num_results,
        "columns": columns,
        "masks": _masks(each),
        **_flow(each),
    }


def _flow(each: StepResults) -> dict[str, JsonValue]:
    """Return the origin's row, and pairs (from, to) of rows along which its bad values went."""
    flow = each.flow
    if flow is None or flow.start is None:
        return {"origin": None, "flow": []}
    row_of = {order: row for row, order in enumerate(each.rows["order"].to_list())}
    known = [(flow.came_from[order], order) for order in flow.came_from if order in row_of]
    pairs: list[JsonValue] = [[_nearest(before, flow.came_from, row_of), row_of[order]] for before, order in known]
    return {"origin": row_of.get(flow.start), "flow": pairs}


def _masks(each: StepResults) -> list[JsonValue]:
    """Return the rows that are not finite only because a mask wrote -inf, as far as bad values were followed."""
    if not each.is_flow_known:
        return []
    flow = each.flow
    bad = {flow.start, *flow.came_from, *flow.others} if flow is not None else set()
    counts, orders = each.rows["nonfinite"].to_list(), each.rows["order"].to_list()
    return [row for row, (count, order) in enumerate(zip(counts, orders, strict=True)) if count and order not in bad]


def _nearest(order: int, came_from: Mapping[int, int], row_of: Mapping[int, int]) -> int | None:
    """Return the row of a result, or if the page has no room for it, of the one it has its bad values from."""
    while order not in row_of and order in came_from:
        order = came_from[order]
    return row_of.get(order)


def _left_out(found: Sequence[StepResults]) -> list[str]:
    notes = []
    short = [each for each in found if each.rows.num_rows < each.num_results]
    if short:
        shown, num = sum(each.rows.num_rows for each in short), sum(each.num_results for each in short)
        notes.append(
            f"For {len(short)} steps, {shown} of {num} results are shown: non-finite ones, the largest, and others at "
            "even intervals. roundoff runs show prints them all."
        )
    if any(not each.is_flow_known for each in found):
        notes.append("Bad values were traced to their origin only in the first steps that have any.")
    return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResults:
    """The results of one step in the order in which they were computed, as far as there is room for them."""

    chosen: ChosenStep
    rows: Rows
    """With the further columns `place` (among all results of the step), `absmax` and `nonfinite`."""
    num_results: int
    flow: BadFlow | None
    is_flow_known: bool
    """Whether bad values were followed, where there are some."""


def step_rows(steps: Sequence[ChosenStep]) -> list[StepResults]:
    """Read the results of all steps, one pass over each folder, and keep of each what is bad, extreme or even."""
    tables = _tables(steps)
    room = room_for(steps, [table.num_rows for table in tables])
    by_weight = sorted(range(len(steps)), key=lambda place: not steps[place].is_telling)
    bad = [place for place in by_weight if _has_bad(tables[place])]
    flowing = [(place, steps[place]) for place in bad[:MAX_FLOWS]]
    flows = {place: bad_flow(step.holder, step=step.step, rank=step.rank) for place, step in flowing}
    return [
        StepResults(
            chosen=steps[place],
            rows=_thin_rows(table, most=room[place], flow=flows.get(place)),
            num_results=table.num_rows,
            flow=flows.get(place),
            is_flow_known=place in flows or place not in bad,
        )
        for place, table in enumerate(tables)
    ]


def _tables(steps: Sequence[ChosenStep]) -> list[Rows]:
    """Return the results of each step; steps of one folder are read together."""
    found: dict[int, Rows] = {}
    holders = {id(step.holder): step.holder for step in steps}
    for key, holder in holders.items():
        mine = [place for place, step in enumerate(steps) if id(step.holder) == key]
        table = holder.events(step=sorted({steps[place].step for place in mine}), columns=_COLUMNS)
        table = table.take(table.texts("output").starts_with("output"))
        keys = {(steps[place].step, steps[place].rank): place for place in mine}
        for at, rows in _split_by_step(table):
            if at in keys:
                found[keys[at]] = _add_measures(rows)
        found |= {place: _add_measures(table.take(slice(0))) for place in mine if place not in found}
    return [found[place] for place in range(len(steps))]


def _split_by_step(table: Rows) -> list[tuple[tuple[int, int], Rows]]:
    """Return (step, rank) and its rows, in their order within the step."""
    if not table.num_rows:
        return []
    steps, ranks = table.numbers("step"), table.numbers("rank")
    places = np.lexsort((table.numbers("order"), ranks, steps))
    keys = np.stack([steps[places], ranks[places]])
    starts = [0, *(np.flatnonzero(np.any(np.diff(keys), axis=0)) + 1).tolist(), len(places)]
    ordered = table.take(places)
    return [
        ((int(keys[0, begin]), int(keys[1, begin])), ordered.take(slice(begin, end)))
        for begin, end in itertools.pairwise(starts)
    ]


def _add_measures(rows: Rows) -> Rows:
    absmax = np.fmax(np.abs(rows.numbers("min")), np.abs(rows.numbers("max")))
    nonfinite = rows.numbers("num_nan") + rows.numbers("num_posinf") + rows.numbers("num_neginf")
    return rows.with_numbers(place=np.arange(rows.num_rows), absmax=absmax, nonfinite=nonfinite)


def _has_bad(rows: Rows) -> bool:
    return bool((rows.numbers("nonfinite") > 0).any())


def _thin_rows(rows: Rows, *, most: int, flow: BadFlow | None) -> Rows:
    """Keep what matters, then the largest magnitudes, then results at even distances, until `most` are kept."""
    if rows.num_rows <= most:
        return rows
    orders, absmax = rows.numbers("order"), rows.numbers("absmax")
    wanted = np.zeros(rows.num_rows)
    even = np.linspace(0, rows.num_rows - 1, max(2, most // 2)).astype(int)
    wanted[even] = 1
    largest = np.argsort(-np.nan_to_num(absmax, nan=0.0))[: most // 4]
    wanted[largest] = 2
    wanted[rows.numbers("nonfinite") > 0] = 3
    if flow is not None and flow.start is not None:
        start = int(np.searchsorted(orders, flow.start))
        wanted[np.isin(orders, list(flow.came_from))] = 4
        wanted[max(0, start - _AROUND) : start + _AROUND] = 5
        wanted[orders == flow.start] = 6
    # A stable sort: among those that matter alike the earlier ones are kept.
    kept = np.sort(np.argsort(-wanted, kind="stable")[:most])
    return rows.take(kept)
