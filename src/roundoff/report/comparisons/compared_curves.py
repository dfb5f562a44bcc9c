"""Two compared loss curves: where the candidate leaves the reference, both curves, and how far apart they end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roundoff.compare.curves.curve import CurveShape, ShapeKind
from roundoff.compare.curves.curve_comparison import CurveComparison, DivergedStretch
from roundoff.report.comparisons.comparison_report import ComparisonReport
from roundoff.report.loss_curve import format_loss
from roundoff.report.parts import Cell, CurvePicture, Facts, Note, Part, Sentence, TableColumn, TablePart, TableRow
from roundoff.runs import JsonValue, object_of
from roundoff.words import plural

MAX_ROWS = 2000
"""A page with more rows is slow to open."""
_COLUMNS = ("step", "reference", "candidate", "difference", "noise", "apart")


@dataclass(frozen=True)
class ComparedCurves(ComparisonReport):
    """A comparison of two loss curves."""

    comparison: CurveComparison

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"{self.comparison.reference.name} against {self.comparison.candidate.name}"

    def parts(self) -> list[Part]:
        """Return the verdict, both curves, and how far apart they end."""
        comparison = self.comparison
        references = [point.reference for point in comparison.points]
        candidates = [point.candidate for point in comparison.points]
        low, high = _bounds(references, candidates)
        sides = (
            ("reference", references, comparison.reference_shape),
            ("candidate", candidates, comparison.candidate_shape),
        )
        return [
            Sentence(curves_verdict(comparison)),
            *(Note(text) for text in _further(comparison)),
            *(
                CurvePicture(label=label, values=values, text=shape_text(shape), low=low, high=high)
                for label, values, shape in sides
            ),
            Facts([("at the end", _ends(comparison))], label_width=11),
        ]

    def tables(self) -> list[TablePart]:
        """Return every step that both curves have; a page has some of many, at even distances."""
        rows = [_table_row(row) for row in curve_rows(self.comparison)]
        every = -(-len(rows) // MAX_ROWS)
        note = f"One of {every} steps is listed; roundoff compare --csv writes them all." if every > 1 else ""
        columns = [TableColumn(name=name, is_number=name != "apart") for name in _COLUMNS]
        return [
            TablePart(title="Steps", columns=columns, rows=rows, noun="steps", page_rows=rows[::every], page_note=note)
        ]

    def csv_rows(self) -> list[Sequence[object]]:
        """Return every step with exact numbers, the header first."""
        return [_COLUMNS, *curve_rows(self.comparison)]

    def to_object(self) -> dict[str, JsonValue]:
        """Return the comparison as a JSON object."""
        comparison = self.comparison
        return {
            "reference": comparison.reference.name,
            "candidate": comparison.candidate.name,
            "verdict": curves_verdict(comparison),
            "differs": comparison.differs,
            "first_divergence": comparison.first_divergence,
            "num_compared": len(comparison.points),
            "num_identical": comparison.num_identical,
            "stretches": [object_of(stretch) for stretch in comparison.stretches],
            "spikes": list(comparison.spikes),
            "shapes": {
                "reference": object_of(comparison.reference_shape),
                "candidate": object_of(comparison.candidate_shape),
            },
            "end": {
                "reference": comparison.end_reference,
                "candidate": comparison.end_candidate,
                "noise": comparison.end_noise,
            },
            "shared_noise": comparison.shared_noise,
            "is_interpolated": comparison.is_interpolated,
        }


def curves_verdict(comparison: CurveComparison) -> str:
    """Say in one sentence whether and where the candidate leaves the reference."""
    steps = plural(len(comparison.points), "step")
    if comparison.num_identical == len(comparison.points):
        return f"The curves are identical in all {steps} that both have."
    if comparison.stretches:
        return _leaves(comparison.stretches[0])
    if comparison.spikes:
        where = ", ".join(map(str, comparison.spikes[:5])) + (", ..." if len(comparison.spikes) > 5 else "")
        return f"The candidate spikes at step {where} and returns; otherwise the curves agree within the noise."
    return f"The curves agree within the reference's own noise over the {steps} that both have."


def shape_text(shape: CurveShape) -> str:
    """Say what a curve looks like.

    >>> shape_text(CurveShape(kind=ShapeKind.FALLING, since=60, start=2.3, end=0.5, lowest=0.4))
    'falls from 2.3 to 0.5, flat since step 60'
    """
    way = f"from {format_loss(shape.start)} to {format_loss(shape.end)}"
    text = {
        ShapeKind.FALLING: f"falls {way}" + (f", flat since step {shape.since}" if shape.since is not None else ""),
        ShapeKind.FLAT: f"is flat around {format_loss(shape.end)}",
        ShapeKind.RISING: f"rises since step {shape.since}, to {format_loss(shape.end)} from "
        f"{format_loss(shape.lowest)}",
        ShapeKind.EXPLODED: f"explodes at step {shape.since}, to {format_loss(shape.end)}",
        ShapeKind.SPIKING: f"goes {way}, with {_spikes(shape)}",
        ShapeKind.NON_FINITE: f"is not finite since step {shape.since}",
    }[shape.kind]
    is_said = shape.kind is ShapeKind.NON_FINITE and shape.since == shape.first_nonfinite
    if shape.num_nonfinite and not is_said:
        text += f"; not finite in {plural(shape.num_nonfinite, 'step')}, first in step {shape.first_nonfinite}"
    return text


def curve_rows(comparison: CurveComparison) -> Iterator[tuple[int, float, float, float, float, bool]]:
    """Yield the numbers of every step that both curves have, in the order of `_COLUMNS`."""
    for point in comparison.points:
        difference = point.candidate - point.reference
        yield point.step, point.reference, point.candidate, difference, point.noise, point.is_apart


def _leaves(stretch: DivergedStretch) -> str:
    if not math.isfinite(stretch.candidate) or not math.isfinite(stretch.reference):
        who = "reference" if math.isfinite(stretch.candidate) else "candidate"
        until = "" if stretch.lasts else f" to {stretch.last_step}" if stretch.last_step > stretch.first_step else ""
        return f"The {who} alone is not finite {'from' if stretch.lasts else 'in'} step {stretch.first_step}{until}" + (
            " on." if stretch.lasts else "."
        )
    side = "above" if stretch.candidate > stretch.reference else "below"
    rest = "and stays" if stretch.lasts else f"until step {stretch.last_step},"
    means = f"{format_loss(stretch.candidate)} against {format_loss(stretch.reference)} on average"
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
        yield "the candidate was logged at other steps; its values were interpolated"
    num_reference, num_candidate = len(comparison.reference.steps), len(comparison.candidate.steps)
    if num_reference != num_candidate or comparison.is_interpolated:
        steps = plural(len(comparison.points), "step")
        yield f"compared at {steps}; the reference has {num_reference}, the candidate {num_candidate}"


def _ends(comparison: CurveComparison) -> str:
    reference, candidate = comparison.end_reference, comparison.end_candidate
    text = f"{format_loss(reference)} against {format_loss(candidate)}"
    if reference == candidate or not (math.isfinite(reference) and math.isfinite(candidate)):
        return text
    share = f"{100 * (candidate - reference) / abs(reference):+.2g} %" if reference else f"{candidate - reference:+.3g}"
    return f"{text} ({share}; single values scatter by {format_loss(comparison.end_noise)})"


def _bounds(reference: list[float], candidate: list[float]) -> tuple[float, float]:
    """Return the range of both pictures: the reference's, extended to the candidate's, but to twice its size at most.

    Otherwise a candidate that explodes would flatten the rest.
    """
    first = [value for value in reference if math.isfinite(value)] or [0.0]
    second = [value for value in candidate if math.isfinite(value)] or first
    low, high = min(first + second), max(first)
    return low, min(max([*second, high]), high + (high - min(first)))


def _spikes(shape: CurveShape) -> str:
    steps = ", ".join(map(str, shape.spikes[:3])) + (", ..." if len(shape.spikes) > 3 else "")
    return f"{'a spike' if len(shape.spikes) == 1 else f'{len(shape.spikes)} spikes'} at step {steps}"


def _table_row(row: tuple[int, float, float, float, float, bool]) -> TableRow:
    step, reference, candidate, difference, noise, is_apart = row
    numbers = ((reference, ".6g"), (candidate, ".6g"), (difference, "+.4g"), (noise, ".3g"))
    cells = [Cell(shown=str(step), value=step)]
    cells += [Cell(shown=f"{number:{form}}", value=float(number)) for number, form in numbers]
    cells.append(Cell(shown="apart" if is_apart else "", value="apart" if is_apart else ""))
    return TableRow(cells=cells, mark="bad" if is_apart else None)
