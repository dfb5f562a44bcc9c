"""One section of a report: its HTML, the data of its charts, what was left out, and the steps that sections show."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from roundoff.diagnose.diagnosis import RunView
from roundoff.diagnose.step_flow import recorded_steps
from roundoff.report.markup import Html, tag
from roundoff.runs import JsonValue, Run

DIGITS = 4
"""Pictures show no more digits; with all of them a page would be twice as large."""


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
    """What scripts draw, by the name that elements of the body refer to."""
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


MAX_STEPS = 100
MAX_RESULTS = 25_000
"""Of all steps together; about 50 bytes each."""
MAX_RESULTS_OF_STEP = 5_000
"""Of a step that findings mention, or that was replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenStep:
    """One step of one rank that the page shows."""

    step: int
    rank: int
    holder: Run
    """The run that holds its events: the run itself, or a replay."""
    is_replay: bool
    is_telling: bool
    """Whether a finding mentions it, or it was replayed."""


def choose_steps(view: RunView) -> tuple[list[ChosenStep], list[str]]:
    """Choose steps: those that findings mention and replays, the first and the last, then others at even distances.

    Of each step the ranks are chosen that findings name, and the first one that was recorded. The notes say what was
    left out.
    """
    mentioned = {(finding.step, finding.rank or 0) for finding in view.findings if finding.step is not None}
    ranks = sorted({rank for _, rank in mentioned})
    found: list[ChosenStep] = []
    other_ranks: set[int] = set()
    for step, holder in recorded_steps(view.run):
        is_replay = holder is not view.run
        there = holder.ranks or [0]
        wanted = [rank for rank in there if rank == there[0] or rank in ranks]
        other_ranks.update(rank for rank in there if rank not in wanted)
        for rank in wanted:
            is_telling = is_replay or (step, rank) in mentioned
            found.append(ChosenStep(step=step, rank=rank, holder=holder, is_replay=is_replay, is_telling=is_telling))
    kept = _spread_evenly(found, most=MAX_STEPS)
    notes = []
    if len(kept) < len(found):
        notes.append(
            f"{len(kept)} of {len(found)} recorded steps can be selected: those that findings mention, and others at "
            "even intervals."
        )
    if other_ranks:
        notes.append(f"The steps of {len(other_ranks)} more ranks are left out, because no finding mentions them.")
    return kept, notes


def room_for(steps: Sequence[ChosenStep], sizes: Sequence[int]) -> list[int]:
    """Return how many results of each step the page has room for: the telling ones first, the others share the rest."""
    left = MAX_RESULTS
    room = [0] * len(steps)
    for place, step in enumerate(steps):
        if step.is_telling:
            room[place] = min(sizes[place], MAX_RESULTS_OF_STEP, left)
            left -= room[place]
    others = sorted((place for place, step in enumerate(steps) if not step.is_telling), key=lambda place: sizes[place])
    for nth, place in enumerate(others):
        room[place] = min(sizes[place], MAX_RESULTS_OF_STEP, left // (len(others) - nth))
        left -= room[place]
    return room


def _spread_evenly(steps: Sequence[ChosenStep], *, most: int) -> list[ChosenStep]:
    if len(steps) <= most:
        return list(steps)
    telling = [place for place, step in enumerate(steps) if step.is_telling][: most // 2]
    num_others = most - len(telling) - 2
    spread = (round(nth * (len(steps) - 1) / (num_others + 1)) for nth in range(num_others + 2))
    places = dict.fromkeys([0, len(steps) - 1, *telling, *spread])
    return [steps[place] for place in sorted(list(places)[:most])]
