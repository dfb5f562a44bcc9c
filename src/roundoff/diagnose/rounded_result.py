"""Where a recipe is emulated, results are rounded by an op of their own: whose result that was, and to which format."""

from __future__ import annotations

from dataclasses import dataclass

from roundoff.diagnose.bad_step import BadStep
from roundoff.diagnose.origin import OriginPlace
from roundoff.runs import Event

_ROUNDING = "roundoff.round"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedResult:
    """The result of an op, finite before it was rounded and not after."""

    result: Event
    """As the op made it."""
    inputs: tuple[Event, ...]
    """What the op made it of."""
    fmt: str | None
    """What it was rounded to, where the rounding was caught."""


def is_rounding(place: OriginPlace) -> bool:
    """Whether the op that made the bad value is the rounding of an emulated recipe."""
    return place.op.startswith(_ROUNDING)


def rounded_result(bad: BadStep, place: OriginPlace) -> RoundedResult | None:
    """Return the result that a rounding made infinite; None if that cannot be told.

    It is known by its hash: what goes into the rounding is bit for bit what came out of the op.
    """
    if not is_rounding(place) or bad.events is None or not place.inputs:
        return None
    taken = place.inputs[0]
    events = [
        event
        for event in bad.events.iter_events(step=bad.events_step, rank=bad.rank, phase=place.phase)
        if event.site == place.site and event.microbatch == place.microbatch and not event.op.startswith(_ROUNDING)
    ]
    made = [
        event
        for event in events
        if event.output.startswith("output") and event.hash == taken.hash and event.order < place.bad.order
    ]
    if not made:
        return None
    result = min(made, key=lambda event: event.order)  # others of that hash are views of it
    inputs = tuple(event for event in events if event.op_name == result.op_name and event.output.startswith("input"))
    fmt = None if bad.origin is None else bad.origin.arguments.get("format")
    return RoundedResult(result=result, inputs=inputs, fmt=fmt if isinstance(fmt, str) else None)
