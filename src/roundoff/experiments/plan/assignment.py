"""Chooses a format for every op at every site: the narrowest for an error, or the smallest error for a budget."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roundoff.errors import PlanError
from roundoff.experiments.plan.options import Target
from roundoff.experiments.plan.site_formats import WIDE, SiteOp
from roundoff.formats import format_named


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatChoice:
    """One format that an op may take, and its cost."""

    fmt: str
    squared_change: float
    num_bits: float


def format_choices(unit: SiteOp, allowed: Sequence[str]) -> tuple[FormatChoice, ...]:
    """Return what an op may take, from narrow to wide, the last being fp32; of equally wide formats only the best."""
    formats = sorted({*allowed, WIDE}, key=lambda fmt: (format_named(fmt).num_bits, unit.squared_change(fmt)))
    best = {format_named(fmt).num_bits: fmt for fmt in reversed(formats)}
    kept = [fmt for fmt in formats if best[format_named(fmt).num_bits] == fmt]
    return tuple(
        FormatChoice(fmt=fmt, squared_change=unit.squared_change(fmt), num_bits=unit.num_bits(fmt)) for fmt in kept
    )


def choose_formats(choices: Sequence[Sequence[FormatChoice]], *, target: Target, loss: float) -> list[FormatChoice]:
    """Return one choice for every op, so that the target is met.

    For a loss, everything starts as narrow as allowed, and what removes most error per bit is widened until the rest
    is small enough. For a budget, everything starts wide and is narrowed in the same way.

    Raises:
        PlanError: even the narrowest allowed formats exceed the budget.
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
    # What takes no memory starts narrow: narrowing it would save no bits, so it would never be narrowed.
    places = [len(each) - 1 if each[-1].num_bits else 0 for each in choices]
    heap = [move for unit, each in enumerate(choices) for move in _narrowings(each, places[unit], unit)]
    heapq.heapify(heap)
    bits = math.fsum(each[-1].num_bits for each in choices)
    least = math.fsum(each[0].num_bits for each in choices)
    if least > budget:
        raise PlanError.explain(
            f"The model does not fit into {budget / 8:.0f} bytes of weights and results.",
            why=f"with every op as narrow as allowed they take {least / 8:.0f} bytes; in fp32 {bits / 8:.0f}.",
            fix="allow narrower formats (--formats e4m3,bf16), or raise the budget.",
        )
    while bits > budget:
        _, unit, place, to = heapq.heappop(heap)
        if places[unit] != place:
            continue  # outdated: another move of this op came first
        bits -= choices[unit][place].num_bits - choices[unit][to].num_bits
        places[unit] = to
        for move in _narrowings(choices[unit], to, unit):
            heapq.heappush(heap, move)
    return [each[place] for each, place in zip(choices, places, strict=True)]


def _total_error(choices: Sequence[Sequence[FormatChoice]], places: Sequence[int]) -> float:
    return math.fsum(each[place].squared_change for each, place in zip(choices, places, strict=True))


def _best_widening(each: Sequence[FormatChoice], place: int, unit: int) -> tuple[float, int, int] | None:
    """Return the step to a wider choice that removes most error per bit it adds."""
    now = each[place]
    steps = [
        (-(now.squared_change - each[to].squared_change) / max(each[to].num_bits - now.num_bits, 1.0), unit, to)
        for to in range(place + 1, len(each))
        if each[to].squared_change < now.squared_change
    ]
    return min(steps, default=None)


def _narrowings(each: Sequence[FormatChoice], place: int, unit: int) -> Iterator[tuple[float, int, int, int]]:
    """Yield the steps to narrower choices with the error that each adds per bit it saves."""
    now = each[place]
    for to in range(place):
        saved = now.num_bits - each[to].num_bits
        if saved > 0:
            yield (each[to].squared_change - now.squared_change) / saved, unit, place, to
