"""Gives every unit a format: the narrowest for an error, or the least error for a budget."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roundoff.errors import PlanError
from roundoff.experiments.plan.site_formats import WIDE, SiteOp
from roundoff.experiments.plan.target import Target
from roundoff.formats import format_named


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatChoice:
    """One format that a unit may take, and what that costs."""

    fmt: str
    squared_change: float
    num_bits: float


def format_choices(unit: SiteOp, allowed: Sequence[str]) -> tuple[FormatChoice, ...]:
    """Return what a unit may take, from narrow to wide; the last is wide. Of formats of one width the better stays."""
    formats = sorted({*allowed, WIDE}, key=lambda fmt: (format_named(fmt).num_bits, unit.squared_change(fmt)))
    best = {format_named(fmt).num_bits: fmt for fmt in reversed(formats)}
    kept = [fmt for fmt in formats if best[format_named(fmt).num_bits] == fmt]
    return tuple(
        FormatChoice(fmt=fmt, squared_change=unit.squared_change(fmt), num_bits=unit.num_bits(fmt)) for fmt in kept
    )


def choose_formats(choices: Sequence[Sequence[FormatChoice]], *, target: Target, loss: float) -> list[FormatChoice]:
    """Return one choice for every unit, so that the target is met.

    For a loss, everything begins as narrow as it may be, and what takes the most error away for its bits is widened
    until the rest is small enough. For a budget, everything begins wide and is narrowed the other way round.

    Raises:
        PlanError: not even the narrowest allowed formats meet the budget.
    """
    if target.loss is not None:
        return _widen_until(choices, limit=(target.loss * abs(loss)) ** 2)
    widest = math.fsum(each[-1].num_bits for each in choices)
    budget = widest * (target.bits or 0.0) / format_named(WIDE).num_bits
    if target.memory_bytes is not None:
        budget = target.memory_bytes * 8.0
    return _narrow_until(choices, budget=budget)


def _widen_until(choices: Sequence[Sequence[FormatChoice]], *, limit: float) -> list[FormatChoice]:
    places = [0] * len(choices)
    moves = [_best_widening(choices[unit], 0, unit) for unit in range(len(choices))]
    heap = [move for move in moves if move is not None]
    heapq.heapify(heap)
    while heap and _total_error(choices, places) > limit:
        _, unit, to = heapq.heappop(heap)
        places[unit] = to
        if following := _best_widening(choices[unit], to, unit):
            heapq.heappush(heap, following)
    return [each[place] for each, place in zip(choices, places, strict=True)]


def _narrow_until(choices: Sequence[Sequence[FormatChoice]], *, budget: float) -> list[FormatChoice]:
    # What takes no room gains nothing by being wide.
    places = [len(each) - 1 if each[-1].num_bits else 0 for each in choices]
    heap = [move for unit, each in enumerate(choices) for move in _narrowings(each, places[unit], unit)]
    heapq.heapify(heap)
    bits = math.fsum(each[-1].num_bits for each in choices)
    least = math.fsum(each[0].num_bits for each in choices)
    if least > budget:
        raise PlanError.explain(
            f"The model does not fit into {budget / 8:.0f} bytes of weights and results.",
            why=f"with every op as narrow as it can be they take {least / 8:.0f} bytes, of {bits / 8:.0f} in fp32.",
            fix="allow narrower formats (--formats e4m3,bf16), or raise the budget.",
        )
    while bits > budget:
        _, unit, place, to = heapq.heappop(heap)
        if places[unit] != place:
            continue  # another move of this unit came first
        bits -= choices[unit][place].num_bits - choices[unit][to].num_bits
        places[unit] = to
        for move in _narrowings(choices[unit], to, unit):
            heapq.heappush(heap, move)
    return [each[place] for each, place in zip(choices, places, strict=True)]


def _total_error(choices: Sequence[Sequence[FormatChoice]], places: Sequence[int]) -> float:
    return math.fsum(each[place].squared_change for each, place in zip(choices, places, strict=True))


def _best_widening(each: Sequence[FormatChoice], place: int, unit: int) -> tuple[float, int, int] | None:
    """Return the step that takes the most error away for the bits it adds."""
    now = each[place]
    steps = [
        (-(now.squared_change - each[to].squared_change) / max(each[to].num_bits - now.num_bits, 1.0), unit, to)
        for to in range(place + 1, len(each))
        if each[to].squared_change < now.squared_change
    ]
    return min(steps, default=None)


def _narrowings(each: Sequence[FormatChoice], place: int, unit: int) -> Iterator[tuple[float, int, int, int]]:
    """Yield the steps to narrower choices: the error each adds for the bits it saves."""
    now = each[place]
    for to in range(place):
        saved = now.num_bits - each[to].num_bits
        if saved > 0:
            yield (each[to].squared_change - now.squared_change) / saved, unit, place, to
