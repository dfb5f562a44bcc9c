"""Two loss curves compared, as a page and as a JSON object."""

from __future__ import annotations

from roundoff.compare.curve_shape import CurveShape
from roundoff.compare.curves import CurveComparison
from roundoff.report.curves_text import CURVE_COLUMNS, curve_rows, curves_verdict, shape_text
from roundoff.report.loss_curve import loss_curve
from roundoff.report.page import facts, page, section
from roundoff.report.table import Cell, Column, TableRow, table
from roundoff.runs import JsonValue

_MOST_ROWS = 2000
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
        section("Steps", _table(comparison)),
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


def _table(comparison: CurveComparison) -> str:
    every = -(-len(comparison.points) // _MOST_ROWS)
    columns = [Column(name=name, is_number=name != "apart") for name in CURVE_COLUMNS]
    rows = []
    for place, (step, *numbers, is_apart) in enumerate(curve_rows(comparison)):
        if place % every == 0:
            cells = [Cell(shown=str(step), value=step)]
            cells += [Cell(shown=f"{number:.6g}", value=float(number)) for number in numbers]
            cells.append(Cell(shown="apart" if is_apart else "", value="apart" if is_apart else ""))
            rows.append(TableRow(cells=cells, mark="bad" if is_apart else None))
    return table(columns, rows, noun="steps")
