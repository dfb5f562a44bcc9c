"""Where the precision of a step goes, as a page: a bar for every site, and the table behind it."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.report.markup import Html, tag
from roundoff.report.page import facts, page, section
from roundoff.report.sensitivity_text import HEADER, precision_sentence, site_row, sum_sentence
from roundoff.report.table import Cell, Column, TableRow, table
from roundoff.sensitivity.by_site import PrecisionLoss, SiteLoss, precision_loss
from roundoff.sensitivity.sensitivity import Sensitivity

_WIDTH, _LEFT, _ROW = 900, 300, 18
_MOST_BARS = 60
_WORDS = ("site", "worst op")


def sensitivity_page(sensitivity: Sensitivity, *, formats: Sequence[str] = ()) -> str:
    """Return a page about one measured step: for each format the verdict, a picture by site that adds up, a table."""
    found = [precision_loss(sensitivity, fmt) for fmt in formats or sensitivity.formats]
    return page(
        "Where the precision goes",
        facts({"step": str(sensitivity.step), "loss": f"{sensitivity.loss:.6g}"}),
        *(
            section(
                each.fmt,
                tag("p", precision_sentence(each), class_="verdict"),
                bars(each),
                tag("p", sum_sentence(each)),
                _table(each),
            )
            for each in found
        ),
    )


def bars(found: PrecisionLoss) -> Html:
    """Return a picture: one bar a site, to the right if it raises the loss; the last two are sum and measurement."""
    shown = found.sites[:_MOST_BARS]
    rows = [(each.site, each.part, f"worst op {each.worst_op}") for each in shown]
    if left := found.sites[_MOST_BARS:]:
        rows.append((f"{len(left)} more sites", sum(each.part for each in left), ""))
    rows.append(("sum of all sites", found.sum, ""))
    if found.measured is not None:
        rows.append(("measured, every site narrow", found.measured, ""))
    largest = max((abs(part) for _, part, _ in rows), default=0.0) or 1.0
    drawn = [_bar(place, *row, largest=largest) for place, row in enumerate(rows)]
    middle, height = _across(0.0, largest), _ROW * len(rows) + 4
    axis = tag("line", x1=middle, x2=middle, y1=0, y2=height, stroke="currentColor", stroke_opacity=0.4)
    label = f"What every site adds to the loss in {found.fmt}"
    return tag("svg", axis, *drawn, viewBox=f"0 0 {_WIDTH} {height}", width="100%", role="img", aria_label=label)


def _bar(place: int, name: str, part: float, note: str, *, largest: float) -> Html:
    start, end = sorted((_across(0.0, largest), _across(part, largest)))
    top = place * _ROW + 3
    told = f"{name}: {part:+.3e}{f', {note}' if note else ''}"
    return tag(
        "g",
        tag("title", told),
        tag("text", name[-44:], x=_LEFT - 8, y=top + 11, text_anchor="end", font_size=12, fill="currentColor"),
        tag("rect", x=start, y=top, width=round(max(end - start, 0.5), 2), height=_ROW - 5, fill="#4c78a8"),
    )


def _across(part: float, largest: float) -> float:
    half = (_WIDTH - _LEFT) / 2
    return round(_LEFT + half + (half - 4) * part / largest, 2)


def _table(found: PrecisionLoss) -> Html:
    columns = [Column(name=name, is_number=name not in _WORDS) for name in HEADER]
    rows = [TableRow(cells=_cells(each), mark="bad" if each.overflow else None) for each in found.sites]
    return table(columns, rows, noun="sites")


def _cells(each: SiteLoss) -> list[Cell]:
    values: tuple[float | str | None, ...] = (
        each.site,
        each.share,
        each.part,
        each.alone,
        each.overflow,
        each.gradient_underflow,
        each.snr_db,
        each.gradient_snr_db,
        each.worst_op,
    )
    return [Cell(shown=shown, value=value) for shown, value in zip(site_row(each), values, strict=True)]
