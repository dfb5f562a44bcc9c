"""The losses of many runs in one chart: searched, grouped by colour and smoothed in the browser."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roundoff.report.charts import MAX_PARTS
from roundoff.report.loss_curve import thin_curve
from roundoff.report.markup import Html, tag
from roundoff.report.run_page.document import plotly_script
from roundoff.report.run_page.section import data_block
from roundoff.runs import JsonValue
from roundoff.serve.http import run_link, served_page
from roundoff.serve.run_rows import RunRow
from roundoff.serve.runs_folder import OpenedRun

MAX_RUNS = 50
"""More curves than this are a grey field."""
_GROUPS = ("none", "recipe", "model", "verdict", "state")


def overlay_page(runs: Sequence[tuple[RunRow, OpenedRun]]) -> bytes:
    """Return the page that draws the losses of some runs together."""
    curves: list[JsonValue] = [_curve(row, opened) for row, opened in runs]
    words = "The loss of each run along the steps."
    place = tag("div", class_="plot", id="overlay", role="img", aria_label=words, data_height=520)
    back = tag("nav", tag("a", "← all runs", href="/"), class_="bar", aria_label="pages")
    return served_page(
        f"Losses of {len(runs)} runs",
        back,
        _controls(),
        tag("figure", place, tag("figcaption", words), class_="chart"),
        tag("ul", *(_entry(row) for row, _ in runs), id="shown", class_="overlaid"),
        data_block("overlay", {"runs": curves}),
        scripts=["overlay.js"],
        drawing=plotly_script(),
    )


def _controls() -> Html:
    search = tag("input", type="search", id="search", autocomplete="off", spellcheck="false")
    groups = tag("select", *(tag("option", name, value=name) for name in _GROUPS), id="group")
    smooth = tag("input", type="range", id="smooth", min=0, max=99, value=0, step=1)
    log = tag("input", type="checkbox", id="log")
    return tag(
        "p",
        tag("label", "Search ", search),
        tag("label", "Colour by ", groups),
        tag("label", "Smooth ", smooth),
        tag("label", log, " logarithmic"),
        tag("output", "", id="count", class_="faint"),
        class_="controls filter",
    )


def _entry(row: RunRow) -> Html:
    return tag("li", tag("a", row.name, href=run_link(row.name)), data_run=row.name)


def _curve(row: RunRow, opened: OpenedRun) -> JsonValue:
    known = [(each.step, each.loss) for each in opened.run.metrics() if each.loss is not None]
    kept = thin_curve([loss for _, loss in known], most_parts=MAX_PARTS // 2)
    verdict = row.findings[0].rule if row.findings else "not diagnosed" if row.findings is None else "nothing found"
    return {
        "name": row.name,
        "recipe": row.info.recipe or "no recipe",
        "model": row.model or "unknown model",
        "verdict": verdict,
        "state": row.state.word if row.state is not None else "damaged",
        "steps": [known[place][0] for place, _ in kept],
        "losses": [loss if math.isfinite(loss) else None for _, loss in kept],
    }
