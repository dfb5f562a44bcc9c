"""One section of a report: its HTML, the data of its charts, and what was left out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from roundoff.report.markup import Html, tag
from roundoff.runs import JsonValue

DIGITS = 4
"""A picture shows no more digits than that; a page would be twice as large with all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page, under a heading of its own."""

    key: str
    """Its anchor: `report.html#KEY` leads to it."""
    title: str
    body: Html
    short: str = ""
    """What the list of contents calls it, where the title is long."""
    data: Mapping[str, JsonValue] = field(default_factory=dict)
    """What scripts draw, by the name under which elements of the body ask for it."""
    thinned: Sequence[str] = ()
    """What the run holds and the page does not show: a sentence each."""


def section_html(part: Section) -> Html:
    """Return a section with its data, which a browser reads and never runs."""
    notes = [tag("p", note, class_="thinned") for note in part.thinned]
    blocks = [data_block(name, value) for name, value in part.data.items()]
    return tag("section", tag("h2", part.title), part.body, *notes, *blocks, id=part.key)


def data_block(name: str, value: JsonValue) -> Html:
    """Return values as an element that no browser executes and no text in them can end."""
    text = json.dumps(for_json(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return tag("script", Html(text), type="application/json", id=f"data-{name}")


def for_json(value: JsonValue) -> JsonValue:
    """Round floats to a few digits; those that are not finite become null, which pictures leave out.

    >>> for_json({"loss": [0.1234567, float("nan"), 3.0]})
    {'loss': [0.1235, None, 3]}
    """
    if isinstance(value, float):
        return _short(value)
    if isinstance(value, Mapping):
        return {key: for_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        plain = (int, str)  # most of what a page holds
        return [entry if type(entry) in plain else for_json(entry) for entry in value]
    return value


def _short(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e6 else short
