"""A comparison of two runs as a page: the verdict, the losses, the differences along the steps, and every tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from roundoff.compare.divergence import Row
from roundoff.diagnose.numbers import format_of
from roundoff.report.compared_runs import runs_text
from roundoff.report.loss_curve import loss_curve
from roundoff.report.markup import Html, joined, tag
from roundoff.report.page import facts, page, section
from roundoff.report.table import Cell, Column, TableRow, table

if TYPE_CHECKING:
    from roundoff.compare.runs import RunComparison
    from roundoff.compare.setting import Difference
    from roundoff.runs import Finding

_WIDTH, _HEIGHT = 960, 160
_LOWEST = 1e-8
"""Smaller relative differences are drawn on the floor."""
MOST_ROWS = 2000
DIVERGENCE = "first-divergence"
"""The anchor of the first tensor that the finding is about."""


def runs_page(comparison: RunComparison, finding: Finding | None, *, reference: str, candidate: str) -> str:
    """Return the page; differing tensors come first in the table, and the page says how many were left out."""
    return page(
        f"{candidate} against {reference}",
        tag("pre", runs_text(comparison, finding)),
        comparison_facts(comparison, reference=reference, candidate=candidate),
        _losses(comparison),
        section("Differences along the steps", _strip(comparison.rows, finding)),
        *([section("Settings that differ", settings_table(comparison.settings))] if comparison.settings else []),
        section("Tensors", tensors_table(comparison.rows, finding)),
    )


def comparison_facts(comparison: RunComparison, *, reference: str, candidate: str) -> Html:
    """Return what was compared, and how much of it is equal."""
    num_equal = sum(row.is_equal for row in comparison.rows)
    return facts(
        {
            "reference": reference,
            "candidate": candidate,
            "steps compared op by op": ", ".join(map(str, comparison.steps)) or "none",
            "tensors lined up": f"{len(comparison.rows)}, of which {num_equal} are equal bit for bit",
            "ops that only one run has": str(len(comparison.unpaired)),
        }
    )


def _losses(comparison: RunComparison) -> Html:
    losses = comparison.losses
    if losses is None or not losses.points:
        return joined()
    columns = [Column(name="run"), Column(name="loss")]
    rows = [
        TableRow(cells=(Cell(shown="reference"), Cell(shown=loss_curve([p.reference for p in losses.points])))),
        TableRow(cells=(Cell(shown="candidate"), Cell(shown=loss_curve([p.candidate for p in losses.points])))),
    ]
    return section("Losses", table(columns, rows, noun="runs"))


def _strip(rows: Sequence[Row], finding: Finding | None) -> Html:
    """Draw the relative difference of every result from the first op to the last, on a logarithmic scale."""
    drawn = [row for row in rows if not math.isnan(row.relative)]
    if not drawn:
        return tag("p", "No step was recorded in both runs.")
    marks = [_bar(place, len(drawn), row, is_origin=is_origin(row, finding)) for place, row in enumerate(drawn)]
    largest = max(row.relative for row in drawn)
    picture = tag(
        "svg",
        *marks,
        role="img",
        aria_label=f"relative differences of {len(drawn)} tensors, the largest {largest:.2g}",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        class_="strip",
    )
    caption = "The relative difference of each result, from 1e-8 to 1, in the order in which the reference ran."
    return tag("figure", picture, tag("figcaption", caption), class_="along")


def _bar(place: int, num: int, row: Row, *, is_origin: bool) -> Html:
    height = _HEIGHT * _share(row.relative)
    width = max(1.0, _WIDTH / num)
    words = f"step {row.step}, {row.phase}: {row.site} / {row.op}: {row.relative:.2g}, inherited {row.inherited:.2g}"
    bar = tag(
        "rect",
        x=f"{_WIDTH * place / num:.1f}",
        y=f"{0 if is_origin else _HEIGHT - height:.1f}",
        width=f"{2 * width if is_origin else width:.2f}",
        height=f"{_HEIGHT if is_origin else height:.1f}",
    )
    return tag("g", tag("title", words), bar, class_="origin" if is_origin else row.phase)


def _share(relative: float) -> float:
    if relative <= _LOWEST:
        return 0.0 if not relative else 0.02
    return min(1.0, 1 - math.log10(min(relative, 1.0)) / math.log10(_LOWEST)) if math.isfinite(relative) else 1.0


def settings_table(settings: Sequence[Difference]) -> Html:
    """Return what the runs were told differently, the two side by side."""
    names = ("setting", "kind", "reference", "candidate")
    rows = [
        TableRow(
            cells=[
                Cell(shown=text, value=text)
                for text in (setting.what, str(setting.kind), str(setting.reference), str(setting.candidate))
            ]
        )
        for setting in settings
    ]
    return table([Column(name=name) for name in names], rows, noun="settings")


def tensors_table(rows: Sequence[Row], finding: Finding | None, *, most: int = MOST_ROWS) -> Html:
    """Return the tensors, differing ones first, the one that the finding is about marked; and how many are left out."""
    differing = [row for row in rows if not row.is_equal]
    shown = [*differing, *(row for row in rows if row.is_equal)][:most]
    columns = [
        Column(name="step", is_number=True),
        Column(name="phase"),
        Column(name="site"),
        Column(name="op"),
        Column(name="shape"),
        Column(name="relative", is_number=True),
        Column(name="inherited", is_number=True),
        Column(name="excess", is_number=True),
        Column(name="reference absmax", is_number=True),
        Column(name="candidate absmax", is_number=True),
        Column(name="formats"),
    ]
    origin = next((row for row in rows if is_origin(row, finding)), None)
    if origin is not None and origin not in shown:
        shown = [origin, *shown[:-1]]
    made = [
        TableRow(
            cells=_cells(row),
            mark="bad" if is_origin(row, finding) else None,
            anchor=DIVERGENCE if row is origin else None,
        )
        for row in shown
    ]
    left_out = len(rows) - len(shown)
    note = [tag("p", f"{left_out} more tensors are left out; roundoff compare --csv writes them all.")]
    return joined(table(columns, made, noun="tensors"), *(note if left_out else []))


def _cells(row: Row) -> list[Cell]:
    place = f"{row.op} {row.parameter}" if row.parameter else row.op
    ours, theirs = format_of(row.reference_dtype), format_of(row.candidate_dtype)
    formats = ours if ours == theirs else f"{ours}, {theirs}"
    return [
        Cell(shown=str(row.step), value=float(row.step)),
        Cell(shown=row.phase, value=row.phase),
        Cell(shown=row.site, value=row.site),
        Cell(shown=place, value=place),
        Cell(shown=row.shape, value=row.shape),
        *(Cell(shown="" if row.is_equal else f"{x:.2g}", value=x) for x in (row.relative, row.inherited, row.excess)),
        *(
            Cell(shown="" if math.isnan(x) else f"{x:.4g}", value=x)
            for x in (row.reference_absmax, row.candidate_absmax)
        ),
        Cell(shown=formats, value=formats),
    ]


def is_origin(row: Row, finding: Finding | None) -> bool:
    """Say whether this is the tensor that the finding is about."""
    if finding is None or finding.step is None:
        return False
    return (row.step, row.phase, row.site, row.op) == (finding.step, finding.phase, finding.site, finding.op)
