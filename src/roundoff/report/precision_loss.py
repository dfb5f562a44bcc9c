"""Where one step loses precision, as text and as a page: a bar for every site, and a table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from roundoff.report.html_table import Cell, Column, TableRow, table
from roundoff.report.markup import Html, tag
from roundoff.report.page import facts, page, section
from roundoff.sensitivity.effects import Sensitivity
from roundoff.sensitivity.site_losses import PrecisionLoss, SiteLoss, precision_loss

HEADER = ("site", "share", "loss", "alone", "overflow", "lost", "SNR", "SNR grad", "worst op")
"""`loss` is a site's part of what the loss moves by, `lost` the share of its gradients that become 0."""
_TEXT_WIDTH = 100
_WIDTHS = (26, 6, 9, 9, 8, 6, 6, 8, 14)
_NAMED_SHARE = 0.5
"""A verdict names the sites that have so much of the error together."""


def sensitivity_text(sensitivity: Sensitivity, fmt: str, *, num_sites: int = 20) -> str:
    """Return where the precision of a measured step goes in one format: the verdict, and a table by site."""
    found = precision_loss(sensitivity, fmt)
    rows = [HEADER, *(site_row(each) for each in found.sites[:num_sites])]
    left = len(found.sites) - num_sites
    more = [f"and {left} more, {100 * sum(each.share for each in found.sites[num_sites:]):.2g} %"] if left > 0 else []
    sentences = [textwrap.fill(sentence, _TEXT_WIDTH) for sentence in (precision_sentence(found), sum_sentence(found))]
    return "\n".join([sentences[0], "", *map(_line, rows), *more, "", sentences[1]])


def precision_sentence(found: PrecisionLoss) -> str:
    """Return the verdict: by how much the loss moves, and because of whom; overflow before all."""
    overflowing = [each for each in found.sites if each.overflow]
    if overflowing:
        worst = max(overflowing, key=lambda each: each.overflow)
        others = f" and {len(overflowing) - 1} more" if len(overflowing) > 1 else ""
        return (
            f"In {found.fmt} {worst.site}{others} overflow{'' if others else 's'}: "
            f"{_percent(worst.overflow)} of a tensor of {worst.worst_op} is outside the format's range."
        )
    change = found.sum if found.measured is None else found.measured
    if not found.sites or not found.loss:
        return f"In {found.fmt} step {found.step} loses no precision."
    return (
        f"In {found.fmt} the loss of step {found.step} moves from {found.loss:.5g} by {change:+.2e} "
        f"({100 * change / abs(found.loss):+.2g} %): {_most_of_it(found)}."
    )


def _most_of_it(found: PrecisionLoss) -> str:
    named: list[SiteLoss] = []
    for each in found.sites[:3]:
        named.append(each)
        if sum(site.share for site in named) >= _NAMED_SHARE:
            break
    sites = [each.site for each in named]
    words = sites[0] if len(sites) == 1 else f"{', '.join(sites[:-1])} and {sites[-1]}"
    return f"{_percent(sum(each.share for each in named))} of the error comes from {words}"


def sum_sentence(found: PrecisionLoss) -> str:
    """Say what the parts add up to, and what was measured."""
    if found.measured is None:
        why = "overflow" if any(each.overflow for each in found.sites) else "could not be computed"
        return f"The sites add up to {found.sum:+.3e}, each rounded alone; together they {why}."
    return (
        f"The sites add up to {found.sum:+.3e}; with every site in {found.fmt} the loss moves by {found.measured:+.3e}."
    )


def site_row(each: SiteLoss) -> tuple[str, ...]:
    """Return the cells of a site, as `HEADER` names them."""
    return (
        each.site,
        _percent(each.share),
        f"{each.part:+.2e}",
        f"{each.alone:+.2e}",
        _percent(each.overflow) if each.overflow else "-",
        _percent(each.gradient_underflow) if each.gradient_underflow else "-",
        decibels(each.snr_db),
        "-" if each.gradient_snr_db is None else decibels(each.gradient_snr_db),
        each.worst_op,
    )


def decibels(value: float) -> str:
    """Return a signal-to-noise ratio as text; `exact` if nothing is lost."""
    return "exact" if value == math.inf else f"{value:.0f} dB"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _line(cells: tuple[str, ...]) -> str:
    site, *numbers, op = cells
    columns = [f"{number:>{width}}" for number, width in zip(numbers, _WIDTHS[1:-1], strict=True)]
    return " ".join([f"{_cut(site, _WIDTHS[0]):{_WIDTHS[0]}}", *columns, _cut(op, _WIDTHS[-1])])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"…{text[1 - width :]}"


_WIDTH, _LEFT, _ROW = 900, 300, 18
_MAX_BARS = 60
_WORDS = ("site", "worst op")


def sensitivity_page(sensitivity: Sensitivity, *, formats: Sequence[str] = ()) -> str:
    """Return a page about one measured step: for each format the verdict, a picture by site that adds up, a table."""
    found = [precision_loss(sensitivity, fmt) for fmt in formats or sensitivity.formats]
    return page(
        "Where precision is lost",
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
    shown = found.sites[:_MAX_BARS]
    rows = [(each.site, each.part, f"worst op {each.worst_op}") for each in shown]
    if left := found.sites[_MAX_BARS:]:
        rows.append((f"{len(left)} more sites", sum(each.part for each in left), ""))
    rows.append(("sum of all sites", found.sum, ""))
    if found.measured is not None:
        rows.append(("measured, all sites narrow", found.measured, ""))
    largest = max((abs(part) for _, part, _ in rows), default=0.0) or 1.0
    drawn = [_bar(place, *row, largest=largest) for place, row in enumerate(rows)]
    middle, height = _across(0.0, largest), _ROW * len(rows) + 4
    axis = tag("line", x1=middle, x2=middle, y1=0, y2=height, stroke="currentColor", stroke_opacity=0.4)
    label = f"What every site adds to the loss in {found.fmt}"
    return tag("svg", axis, *drawn, viewBox=f"0 0 {_WIDTH} {height}", width="100%", role="img", aria_label=label)


def _bar(place: int, name: str, part: float, note: str, *, largest: float) -> Html:
    start, end = sorted((_across(0.0, largest), _across(part, largest)))
    top = place * _ROW + 3
    title = f"{name}: {part:+.3e}{f', {note}' if note else ''}"
    return tag(
        "g",
        tag("title", title),
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
