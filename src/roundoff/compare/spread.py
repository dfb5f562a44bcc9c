"""How far each result of a run moves by rounding alone, where that was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from roundoff.compare.distance import distances
from roundoff.compare.explained import unit_of
from roundoff.runs import Event, Run

Place: TypeAlias = tuple[int, str, str, str, int, str]

TIMES = 10.0
"""A candidate may be so many times the spread away, in the same format."""
TIMES_COARSER = 2.0
"""And so many times in a coarser one, whose roundings move everything, not parameters alone."""


def spread_of(run: Run, *, step: int, rank: int) -> dict[Place, float]:
    """Return the relative distance of each result to the same one with its parameters moved; empty if not tried."""
    perturbed = run.perturbed(step)
    if perturbed is None:
        return {}
    moved = {_place(event): event for event in perturbed.iter_events(step=step, rank=rank)}
    events = [event for event in run.iter_events(step=step, rank=rank) if _place(event) in moved]
    found = distances([(event, moved[_place(event)]) for event in events])
    return {_place(event): distance.relative for event, distance in zip(events, found, strict=True)}


def allowed_by(spread: Mapping[Place, float], event: Event, *, unit: float) -> float:
    """Return the relative distance that rounding alone may give a result of the reference in formats of this `unit`."""
    coarser = unit / (unit_of(event.dtype) or unit or 1.0)
    return spread.get(_place(event), 0.0) * (TIMES if coarser <= 1 else TIMES_COARSER * coarser)


def _place(event: Event) -> Place:
    return event.microbatch, event.phase, event.site, event.op, event.nth, event.output
