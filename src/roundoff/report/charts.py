"""Charts as values: what plotly draws, in colours of the style sheet."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundoff.report.loss_curve import thin_curve
from roundoff.report.markup import Html, tag
from roundoff.runs import JsonValue

MAX_PARTS = 1000
"""Longer curves are split into this many parts, and the lowest and the highest value of each are shown."""
MAX_TICKED_STEPS = 12
"""An axis of at most this many steps has a tick at each; there is nothing between two steps."""

Trace = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Numbers along the steps; None and numbers that are not finite leave a gap."""

    name: str
    steps: Sequence[int]
    values: Sequence[float | None]
    colour: str = "--accent"
    """A variable of the style sheet."""
    dash: str = "solid"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(value is not None and math.isfinite(value) for value in self.values)


def line(curve: Curve) -> Trace:
    """Return the trace of a curve, thinned so that no peak and no gap is lost."""
    numbers = [math.nan if value is None else value for value in curve.values]
    kept = thin_curve(numbers, most_parts=MAX_PARTS)
    num_finite = sum(math.isfinite(value) for _, value in kept)
    return {
        "type": "scatter",
        "mode": "lines" if num_finite > 1 else "markers",
        "name": text(curve.name),
        "x": [curve.steps[place] for place, _ in kept],
        "y": [value for _, value in kept],
        "line": {"color": f"var({curve.colour})", "width": 1.6, "dash": curve.dash},
        "marker": {"color": f"var({curve.colour})", "size": 7},
    }


def marks(name: str, points: Sequence[tuple[int, float | None, str]], *, colour: str, symbol: str) -> Trace:
    """Return marks at (step, value), each with a text; marks without a finite value are at the bottom."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": text(name),
        "x": [step for step, _, _ in points],
        "y": [value for _, value, _ in points],
        "text": [text(words) for _, _, words in points],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": f"var({colour})", "size": 10, "symbol": symbol},
    }


def vertical_line(step: float, words: str, *, colour: str) -> tuple[JsonValue, JsonValue]:
    """Return a vertical line at a step and the text next to it: a shape and an annotation."""
    paint = f"var({colour})"
    shape: JsonValue = {
        "type": "line", "x0": step, "x1": step, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"color": paint, "width": 1.2, "dash": "dot"},
    }  # fmt: skip
    note: JsonValue = {
        "x": step, "xref": "x", "yref": "paper", "y": 1, "yanchor": "bottom", "xanchor": "left", "showarrow": False,
        "text": text(words), "font": {"color": paint, "size": 11},
    }  # fmt: skip
    return shape, note


def figure(traces: Sequence[Trace], *, x: str, y: str, **layout: JsonValue) -> JsonValue:
    """Return what a script hands to plotly: traces, and a layout with titled axes."""
    across: dict[str, JsonValue] = {
        "title": {"text": text(x)},
        **({"dtick": 1} if _span(traces) <= MAX_TICKED_STEPS else {}),
    }
    axes: dict[str, JsonValue] = {"xaxis": across, "yaxis": {"title": {"text": text(y)}}}
    for name, value in layout.items():
        known = axes.get(name)
        axes[name] = {**known, **value} if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return {"data": list(traces), "layout": axes}


def _span(traces: Sequence[Trace]) -> float:
    """Return how far the traces reach across."""
    places = [x for trace in traces for x in _numbers(trace.get("x"))]
    return max(places) - min(places) if places else 0.0


def _numbers(values: JsonValue) -> list[float]:
    return [value for value in values if isinstance(value, int | float)] if isinstance(values, list) else []


def chart(name: str, *, words: str, height: int = 320) -> Html:
    """Return the place of a chart: scripts draw there what the section's data holds under `name`.

    `words` say what it shows, for screen readers and as the caption. The height in pixels is kept free before it is
    drawn, so that nothing jumps.
    """
    place = tag("div", class_="plot", data_chart=name, role="img", aria_label=words, data_height=height)
    return tag("figure", place, tag("figcaption", words), class_="chart")


def text(words: str) -> str:
    """Return words as plotly shows them; it takes some tags and links in any text for markup.

    >>> text("<loop>")
    '&lt;loop&gt;'
    """
    return html.escape(words, quote=False)
