"""Two steps, side by side: which weights moved, and where values grow."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from roundoff.runs import JsonValue

if TYPE_CHECKING:
    from roundoff.compare.runs.step_pair import Growth, ParameterMove, StepPairComparison

MOST = 5


def steps_text(comparison: StepPairComparison, *, table: bool = False) -> str:
    """Say how many weights changed, which did not, which most, and from where on values grow."""
    moved = [move for move in comparison.moves if not move.is_equal]
    still = [move.parameter for move in comparison.moves if move.is_equal]
    span = f"from step {comparison.reference_step} to step {comparison.candidate_step}"
    lines = [f"{len(moved)} of {len(comparison.moves)} parameters changed {span}."]
    if still and moved:
        more = f" and {len(still) - MOST} more" if len(still) > MOST else ""
        lines.append(f"  unchanged  {', '.join(still[:MOST])}{more}")
    most = sorted(moved, key=lambda move: -move.relative if math.isfinite(move.relative) else 0.0)
    lines += [f"  changed    {_move(move)}" for move in (most if table else most[:MOST])]
    return "\n".join([*lines, *_growth_lines(comparison, table=table)])


def steps_object(comparison: StepPairComparison) -> dict[str, JsonValue]:
    """Return the comparison as JSON."""
    first = comparison.first_growth
    return {
        "reference_step": comparison.reference_step,
        "candidate_step": comparison.candidate_step,
        "parameters": [asdict(move) for move in comparison.moves],
        "first_growth": None if first is None else asdict(first),
        "growths": [asdict(growth) for growth in comparison.growths],
    }


def _growth_lines(comparison: StepPairComparison, *, table: bool) -> list[str]:
    if not comparison.growths:
        return ["  The ops of these steps were not recorded, so that only norms could be compared."]
    first = comparison.first_growth
    if first is None:
        largest = max(comparison.growths, key=lambda growth: growth.ratio)
        lines = [f"  no result grew much; the most: {_growth(largest)}"]
    else:
        lines = [f"  values grow from here on: {_growth(first)}"]
    if table:
        rising = sorted(comparison.growths, key=lambda growth: -growth.ratio)[:40]
        lines += [f"    {_growth(growth)}" for growth in rising]
    return lines


def _move(move: ParameterMove) -> str:
    if math.isinf(move.relative):
        return f"{move.parameter}   from zero"
    share = f"{100 * move.relative:.3g} %" if move.relative >= 1e-4 else f"{move.relative:.2g}"
    return f"{move.parameter}   by {share}"


def _growth(growth: Growth) -> str:
    place = f"{growth.site} / {growth.op}, {growth.phase}"
    source = f"   {growth.source}" if growth.source else ""
    return f"{place}: {growth.reference_absmax:.3g} -> {growth.candidate_absmax:.3g}{source}"
