"""Two loss curves compared, as text: the verdict first, then both curves, then how far apart they end."""

from __future__ import annotations

import math
from collections.abc import Iterator

from roundoff.compare.curves.curve import CurveShape, ShapeKind
from roundoff.compare.curves.curve_comparison import CurveComparison, DivergedStretch
from roundoff.report.html_table import Cell, Column, TableRow, table
from roundoff.report.loss_curve import loss_curve
from roundoff.report.page import facts, page, section
from roundoff.report.sparkline import sparkline
from roundoff.runs import JsonValue
from roundoff.words import plural

CURVE_COLUMNS = ("step", "reference", "candidate", "difference", "noise", "apart")


def curves_text(comparison: CurveComparison) -> str:
    """Lay out a comparison of curves on half a screen."""
    ours = [point.reference for point in comparison.points]
    theirs = [point.candidate for point in comparison.points]
    low, high = _bounds(ours, theirs)
    lines = [
        curves_verdict(comparison),
        *(f"  {line}" for line in _further(comparison)),
        f"  reference  {sparkline(ours, low=low, high=high)}  {shape_text(comparison.reference_shape)}",
        f"  candidate  {sparkline(theirs, low=low, high=high)}  {shape_text(comparison.candidate_shape)}",
        f"  at the end {_ends(comparison)}",
    ]
    return "\n".join(lines)


def curves_verdict(comparison: CurveComparison) -> str:
    """Say in one sentence whether and where the candidate leaves the reference."""
    if comparison.num_identical == len(comparison.points):
        return f"The curves are identical in all {_steps(len(comparison.points))} that both have."
    if comparison.stretches:
        return _leaves(comparison.stretches[0])
    if comparison.spikes:
        where = ", ".join(map(str, comparison.spikes[:5])) + (", ..." if len(comparison.spikes) > 5 else "")
        return f"The candidate spikes at step {where} and comes back; else the curves agree within the noise."
    return (
        f"The curves agree within the reference's own noise over the {_steps(len(comparison.points))} that both have."
    )


def shape_text(shape: CurveShape) -> str:
    """Say what a curve looks like.

    >>> shape_text(CurveShape(kind=ShapeKind.FALLING, since=60, start=2.3, end=0.5, lowest=0.4))
    'falls from 2.3 to 0.5, flat since step 60'
    """
    way = f"from {_number(shape.start)} to {_number(shape.end)}"
    text = {
        ShapeKind.FALLING: f"falls {way}" + (f", flat since step {shape.since}" if shape.since is not None else ""),
        ShapeKind.FLAT: f"is flat around {_number(shape.end)}",
        ShapeKind.RISING: f"rises since step {shape.since}, to {_number(shape.end)} from {_number(shape.lowest)}",
        ShapeKind.EXPLODED: f"explodes at step {shape.since}, to {_number(shape.end)}",
        ShapeKind.SPIKING: f"goes {way}, with {_spikes(shape)}",
        ShapeKind.NON_FINITE: f"is not finite since step {shape.since}",
    }[shape.kind]
    is_said = shape.kind is ShapeKind.NON_FINITE and shape.since == shape.first_nonfinite
    if shape.num_nonfinite and not is_said:
        text += f"; not finite in {_steps(shape.num_nonfinite)}, first in step {shape.first_nonfinite}"
    return text


def curve_rows(comparison: CurveComparison) -> Iterator[tuple[int, float, float, float, float, bool]]:
    """Yield the cells of every step that was lined up, by the columns `CURVE_COLUMNS`."""
    for point in comparison.points:
        difference = point.candidate - point.reference
        yield point.step, point.reference, point.candidate, difference, point.noise, point.is_apart


def curves_table(comparison: CurveComparison) -> str:
    """Lay out every step that was lined up; a star marks those that are apart."""
    lines = [f"{'step':>9} {'reference':>12} {'candidate':>12} {'difference':>12} {'noise':>10}"]
    lines += [
        f"{step:9d} {ours:12.6g} {theirs:12.6g} {difference:+12.4g} {noise:10.3g}{' *' if is_apart else ''}"
        for step, ours, theirs, difference, noise, is_apart in curve_rows(comparison)
    ]
    return "\n".join(lines)


def _leaves(stretch: DivergedStretch) -> str:
    if not math.isfinite(stretch.candidate) or not math.isfinite(stretch.reference):
        who = "reference" if math.isfinite(stretch.candidate) else "candidate"
        until = "" if stretch.lasts else f" to {stretch.last_step}" if stretch.last_step > stretch.first_step else ""
        return f"The {who} alone is not finite {'from' if stretch.lasts else 'in'} step {stretch.first_step}{until}" + (
            " on." if stretch.lasts else "."
        )
    side = "above" if stretch.candidate > stretch.reference else "below"
    rest = "and stays" if stretch.lasts else f"until step {stretch.last_step},"
    means = f"{_number(stretch.candidate)} against {_number(stretch.reference)} in the mean"
    return f"The candidate leaves the reference at step {stretch.first_step} {rest} {side} it: {means}."


def _further(comparison: CurveComparison) -> Iterator[str]:
    """Yield what else there is to know."""
    if 0 < comparison.num_identical < len(comparison.points):
        one = comparison.num_identical == 1
        yield f"identical {'in the first step' if one else f'for the first {comparison.num_identical} steps'}"
    for stretch in comparison.stretches[1:4]:
        yield _leaves(stretch)
    if len(comparison.stretches) > 4:
        yield f"{len(comparison.stretches) - 4} more such stretches"
    if comparison.stretches and comparison.spikes:
        yield f"the candidate also spikes at step {', '.join(map(str, comparison.spikes[:5]))}"
    if comparison.is_interpolated:
        yield "the candidate was logged at other steps; its values between those were taken"
    ours, theirs = len(comparison.reference.steps), len(comparison.candidate.steps)
    if ours != theirs or comparison.is_interpolated:
        yield f"compared at {_steps(len(comparison.points))}; the reference has {ours}, the candidate {theirs}"


def _ends(comparison: CurveComparison) -> str:
    ours, theirs = comparison.end_reference, comparison.end_candidate
    text = f"{_number(ours)} against {_number(theirs)}"
    if ours == theirs or not (math.isfinite(ours) and math.isfinite(theirs)):
        return text
    share = f"{100 * (theirs - ours) / abs(ours):+.2g} %" if ours else f"{theirs - ours:+.3g}"
    return f"{text} ({share}; by chance single values are {_number(comparison.end_noise)} apart)"


def _bounds(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Return what both pictures reach from and to: the reference's range, and a candidate's beyond it up to its double.

    A candidate that explodes would leave nothing to see of the rest.
    """
    first = [value for value in ours if math.isfinite(value)] or [0.0]
    second = [value for value in theirs if math.isfinite(value)] or first
    low, high = min(first + second), max(first)
    return low, min(max([*second, high]), high + (high - min(first)))


def _spikes(shape: CurveShape) -> str:
    steps = ", ".join(map(str, shape.spikes[:3])) + (", ..." if len(shape.spikes) > 3 else "")
    return f"{'a spike' if len(shape.spikes) == 1 else f'{len(shape.spikes)} spikes'} at step {steps}"


def _steps(number: int) -> str:
    return plural(number, "step")


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.3g}"


# == Two loss curves compared, as a page and as a JSON object.

_MAX_ROWS = 2000
"""A page with more rows than that is slow to open."""


def curves_page(comparison: CurveComparison) -> str:
    """Return the comparison as a page: the verdict, both curves, and the steps that were lined up."""
    ours = [point.reference for point in comparison.points]
    theirs = [point.candidate for point in comparison.points]
    sides = (
        ("Reference", comparison.reference.name, ours, comparison.reference_shape),
        ("Candidate", comparison.candidate.name, theirs, comparison.candidate_shape),
    )
    return page(
        f"{comparison.reference.name} against {comparison.candidate.name}",
        facts({"verdict": curves_verdict(comparison)}),
        *(
            section(title, facts({"file": name, "curve": shape_text(shape)}), loss_curve(values))
            for title, name, values, shape in sides
        ),
        section("Steps", _curves_html_table(comparison)),
    )


def curves_object(comparison: CurveComparison) -> dict[str, JsonValue]:
    """Return the comparison as a JSON object."""
    return {
        "reference": comparison.reference.name,
        "candidate": comparison.candidate.name,
        "verdict": curves_verdict(comparison),
        "differs": comparison.differs,
        "first_divergence": comparison.first_divergence,
        "num_compared": len(comparison.points),
        "num_identical": comparison.num_identical,
        "stretches": [
            {
                "first_step": stretch.first_step,
                "last_step": stretch.last_step,
                "reference": stretch.reference,
                "candidate": stretch.candidate,
                "lasts": stretch.lasts,
            }
            for stretch in comparison.stretches
        ],
        "spikes": list(comparison.spikes),
        "shapes": {
            "reference": _shape_object(comparison.reference_shape),
            "candidate": _shape_object(comparison.candidate_shape),
        },
        "end": {
            "reference": comparison.end_reference,
            "candidate": comparison.end_candidate,
            "noise": comparison.end_noise,
        },
        "shared_noise": comparison.shared_noise,
        "is_interpolated": comparison.is_interpolated,
    }


def _shape_object(shape: CurveShape) -> JsonValue:
    return {
        "kind": str(shape.kind),
        "since": shape.since,
        "start": shape.start,
        "end": shape.end,
        "lowest": shape.lowest,
        "spikes": list(shape.spikes),
        "num_nonfinite": shape.num_nonfinite,
        "first_nonfinite": shape.first_nonfinite,
    }


def _curves_html_table(comparison: CurveComparison) -> str:
    every = -(-len(comparison.points) // _MAX_ROWS)
    columns = [Column(name=name, is_number=name != "apart") for name in CURVE_COLUMNS]
    rows = []
    for place, (step, *numbers, is_apart) in enumerate(curve_rows(comparison)):
        if place % every == 0:
            cells = [Cell(shown=str(step), value=step)]
            cells += [Cell(shown=f"{number:.6g}", value=float(number)) for number in numbers]
            cells.append(Cell(shown="apart" if is_apart else "", value="apart" if is_apart else ""))
            rows.append(TableRow(cells=cells, mark="bad" if is_apart else None))
    return table(columns, rows, noun="steps")
