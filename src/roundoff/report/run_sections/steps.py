"""One recorded step at a time: its ops from first to last, the origin of bad values, and where they went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from roundoff.diagnose.numbers import FORMATS, largest_of
from roundoff.formats import SmallFloat, format_named
from roundoff.report.markup import Html, tag
from roundoff.report.run_sections.chosen_steps import chosen_steps
from roundoff.report.run_sections.step_rows import StepRows, step_rows
from roundoff.report.run_view import RunView
from roundoff.report.section import Section
from roundoff.runs import JsonValue

LIMITS = ("fp32", "bf16", "fp16", "e5m2", "e4m3")
"""The formats whose range can be drawn over a step."""
_NAMED = ("phase", "site", "op", "dtype", "shape", "source", "parameter")
"""Columns of few different texts: each is told once, rows hold its number."""


def steps_section(view: RunView) -> Section:
    """Show the steps that were recorded or replayed; say so where there is none."""
    choice = chosen_steps(view)
    if not choice.steps:
        words = (
            "No step was recorded, so that there are no ops to show. To record one:  roundoff record --steps 0 SCRIPT"
        )
        return Section(key="steps", title="Ops of a step", body=tag("p", words))
    found = step_rows(choice.steps)
    return Section(
        key="steps",
        title="Ops of a step",
        short="Ops",
        body=_body(found, first=_first(view, found)),
        data={"steps": {"limits": _limits(), **_values(found)}},
        thinned=[*choice.notes, *_left_out(found)],
    )


def _first(view: RunView, found: Sequence[StepRows]) -> int:
    """Return the place of the step that is shown first: the verdict's, or one with an origin, or the first."""
    told = [(finding.step, finding.rank or 0) for finding in view.findings]
    places = {(each.chosen.step, each.chosen.rank): place for place, each in enumerate(found)}
    origins = (place for place, each in enumerate(found) if each.flow is not None and each.flow.start is not None)
    return next((places[at] for at in told if at in places), next(origins, 0))


def _body(found: Sequence[StepRows], *, first: int) -> Html:
    options = [tag("option", _label(each), value=place, selected=place == first) for place, each in enumerate(found)]
    narrow = any("16" in name for each in found for name in each.rows["dtype"].unique().to_pylist())
    formats = [tag("option", name, selected=name == ("fp16" if narrow else "none")) for name in ("none", *LIMITS)]
    controls = tag(
        "p",
        tag("label", "Step ", tag("select", *options, id="step-choice")),
        tag("label", "Limits of ", tag("select", *formats, id="step-limits")),
        tag("button", "Jump to the origin", type="button", id="step-origin", hidden=True),
        class_="controls",
        hidden=True,
    )
    words = (
        "The largest magnitude of each result, in the order in which it was computed; what is not finite stands above."
    )
    flow = "Where the bad values went: from the origin through every result that holds them, site by site."
    return tag(
        "div",
        controls,
        tag("p", id="step-words", aria_live="polite"),
        _picture("step-chart", words, height=380),
        _picture("step-flow", flow, height=300, hidden=True),
        tag("div", id="step-table"),
        tag("noscript", tag("p", "The ops of a step are shown by a script. roundoff runs show prints them.")),
        id="step-view",
    )


def _picture(name: str, words: str, *, height: int, hidden: bool = False) -> Html:
    place = tag("div", class_="plot", id=name, role="img", aria_label=words, data_height=height)
    return tag("figure", place, tag("figcaption", words), class_="chart", id=f"{name}-figure", hidden=hidden)


def _label(each: StepRows) -> str:
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


def _values(found: Sequence[StepRows]) -> dict[str, JsonValue]:
    codes: dict[str, dict[str, int]] = {name: {"": 0} for name in _NAMED}
    told = [_step(each, codes) for each in found]
    names: dict[str, JsonValue] = {name: list(known) for name, known in codes.items()}
    formats: dict[str, JsonValue] = dict(FORMATS)
    return {"names": names, "formats": formats, "steps": told}


def _step(each: StepRows, codes: dict[str, dict[str, int]]) -> dict[str, JsonValue]:
    rows = each.rows
    columns: dict[str, JsonValue] = {
        name: [codes[name].setdefault(text or "", len(codes[name])) for text in rows[name].to_pylist()]
        for name in _NAMED
    }
    elements = rows["num_elements"].to_pylist()
    columns |= {name: rows[name].to_pylist() for name in ("place", "nth", "nonfinite", "absmax")}
    columns |= {
        short: [count / max(1, size) for count, size in zip(rows[name].to_pylist(), elements, strict=True)]
        for short, name in (("zero", "num_zero"), ("subnormal", "num_subnormal"))
    }
    if any(rows["microbatch"].to_pylist()):
        columns["microbatch"] = rows["microbatch"].to_pylist()
    introduced = rows["introduced_ulps"].to_pylist()
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


def _flow(each: StepRows) -> dict[str, JsonValue]:
    """Return the origin's row, and pairs (from, to) of rows along which its bad values went."""
    flow = each.flow
    if flow is None or flow.start is None:
        return {"origin": None, "flow": []}
    row_of = {order: row for row, order in enumerate(each.rows["order"].to_pylist())}
    known = [(flow.came_from[order], order) for order in flow.came_from if order in row_of]
    pairs: list[JsonValue] = [[_nearest(before, flow.came_from, row_of), row_of[order]] for before, order in known]
    return {"origin": row_of.get(flow.start), "flow": pairs}


def _masks(each: StepRows) -> list[JsonValue]:
    """Return the rows that are not finite only because a mask wrote -inf, as far as bad values were followed."""
    if not each.is_flow_known:
        return []
    flow = each.flow
    bad = {flow.start, *flow.came_from, *flow.others} if flow is not None else set()
    counts, orders = each.rows["nonfinite"].to_pylist(), each.rows["order"].to_pylist()
    return [row for row, (count, order) in enumerate(zip(counts, orders, strict=True)) if count and order not in bad]


def _nearest(order: int, came_from: Mapping[int, int], row_of: Mapping[int, int]) -> int | None:
    """Return the row of a result, or if the page has no room for it, of the one it has its bad values from."""
    while order not in row_of and order in came_from:
        order = came_from[order]
    return row_of.get(order)


def _left_out(found: Sequence[StepRows]) -> list[str]:
    notes = []
    short = [each for each in found if each.rows.num_rows < each.num_results]
    if short:
        shown, num = sum(each.rows.num_rows for each in short), sum(each.num_results for each in short)
        notes.append(
            f"Of {len(short)} steps {shown} of {num} results are shown: what is not finite, the largest, and others at "
            "even distances. roundoff runs show prints them all."
        )
    if any(not each.is_flow_known for each in found):
        notes.append("Only in the first steps with bad values these were followed to their origin.")
    return notes
