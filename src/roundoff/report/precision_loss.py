"""Where one step loses precision, as text and as a page: a bar for every site, and a table."""

from __future__ import annotations

import math

from roundoff.report.markup import Html, tag
from roundoff.report.page import facts, page, section
from roundoff.report.parts import Cell, Note, Part, Sentence, TableColumn, TablePart, TableRow, table_html, to_html
from roundoff.sensitivity.effects import PrecisionLoss, Sensitivity, SiteLoss, precision_loss
from roundoff.words import join_words

_COLUMNS = ("site", "share", "loss", "alone", "overflow", "lost", "SNR", "SNR grad", "worst op")
"""`loss` is a site's part of what the loss moves by, `lost` the share of its gradients that become 0."""
_WORDS = ("site", "worst op")
_NAMED_SHARE = 0.5
"""A verdict names the sites that have this share of the error together."""


def sensitivity_parts(sensitivity: Sensitivity, fmt: str, *, num_sites: int = 20) -> list[Part]:
    """Return where the precision of a measured step goes in one format: the verdict, and a table by site."""
    found = precision_loss(sensitivity, fmt)
    return [Sentence(precision_sentence(found)), Note(sum_sentence(found)), _table(found, num_sites=num_sites)]


def precision_sentence(found: PrecisionLoss) -> str:
    """Return the verdict: by how much the loss moves, and which sites cause it; overflow comes first."""
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
    sites = join_words([each.site for each in named])
    return f"{_percent(sum(each.share for each in named))} of the error comes from {sites}"


def sum_sentence(found: PrecisionLoss) -> str:
    """Return what the parts add up to, and what was measured."""
    if found.measured is None:
        why = "overflow" if any(each.overflow for each in found.sites) else "could not be computed"
        return f"The sites add up to {found.sum:+.3e}, each rounded alone; together they {why}."
    return (
        f"The sites add up to {found.sum:+.3e}; with every site in {found.fmt} the loss moves by {found.measured:+.3e}."
    )


def decibels(value: float) -> str:
    """Return a signal-to-noise ratio as text; `exact` if nothing is lost."""
    return "exact" if value == math.inf else f"{value:.0f} dB"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


_WIDTH, _LEFT, _ROW = 900, 300, 18
_MAX_BARS = 60


def sensitivity_page(sensitivity: Sensitivity) -> str:
    """Return a page about one measured step: for each format the verdict, a picture by site that adds up, a table."""
    found = [precision_loss(sensitivity, fmt) for fmt in sensitivity.formats]
    return page(
        "Where precision is lost",
        facts({"step": str(sensitivity.step), "loss": f"{sensitivity.loss:.6g}"}),
        *(
            section(
                each.fmt,
                to_html([Sentence(precision_sentence(each))]),
                bars(each),
                to_html([Note(sum_sentence(each))]),
                table_html(_table(each, num_sites=len(each.sites))),
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


def _table(found: PrecisionLoss, *, num_sites: int) -> TablePart:
    columns = [TableColumn(name=name, is_number=name not in _WORDS) for name in _COLUMNS]
    rows = [TableRow(cells=_cells(each), mark="bad" if each.overflow else None) for each in found.sites[:num_sites]]
    left = found.sites[num_sites:]
    note = f"and {len(left)} more, {100 * sum(each.share for each in left):.2g} %" if left else ""
    return TablePart(title="Sites", columns=columns, rows=rows, noun="sites", note=note)


def _cells(each: SiteLoss) -> list[Cell]:
    return [
        Cell(shown=each.site, value=each.site),
        Cell(shown=_percent(each.share), value=each.share),
        Cell(shown=f"{each.part:+.2e}", value=each.part),
        Cell(shown=f"{each.alone:+.2e}", value=each.alone),
        Cell(shown=_percent(each.overflow) if each.overflow else "-", value=each.overflow),
        Cell(
            shown=_percent(each.gradient_underflow) if each.gradient_underflow else "-", value=each.gradient_underflow
        ),
        Cell(shown=decibels(each.snr_db), value=each.snr_db),
        Cell(shown="-" if each.gradient_snr_db is None else decibels(each.gradient_snr_db), value=each.gradient_snr_db),
        Cell(shown=each.worst_op, value=each.worst_op),
    ]
