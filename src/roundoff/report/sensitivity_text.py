"""Where the precision of a step goes, as text."""

from __future__ import annotations

import math
import textwrap

from roundoff.sensitivity.by_site import PrecisionLoss, SiteLoss, precision_loss
from roundoff.sensitivity.sensitivity import Sensitivity

HEADER = ("site", "share", "loss", "alone", "overflow", "lost", "SNR", "SNR grad", "worst op")
"""`loss` is a site's part of what the loss moves by, `lost` the share of its gradients that become 0."""
_WIDTH = 100
_WIDTHS = (26, 6, 9, 9, 8, 6, 6, 8, 14)
_MOST = 0.5
"""A verdict names the sites that have so much of the error together."""


def sensitivity_text(sensitivity: Sensitivity, fmt: str, *, num_sites: int = 20) -> str:
    """Return where the precision of a measured step goes in one format: the verdict, and a table by site."""
    found = precision_loss(sensitivity, fmt)
    rows = [HEADER, *(site_row(each) for each in found.sites[:num_sites])]
    left = len(found.sites) - num_sites
    more = [f"and {left} more, {100 * sum(each.share for each in found.sites[num_sites:]):.2g} %"] if left > 0 else []
    sentences = [textwrap.fill(sentence, _WIDTH) for sentence in (precision_sentence(found), sum_sentence(found))]
    return "\n".join([sentences[0], "", *map(_line, rows), *more, "", sentences[1]])


def precision_sentence(found: PrecisionLoss) -> str:
    """Return the verdict: by how much the loss moves, and because of whom; overflow before all."""
    overflowing = [each for each in found.sites if each.overflow]
    if overflowing:
        worst = max(overflowing, key=lambda each: each.overflow)
        others = f" and {len(overflowing) - 1} more" if len(overflowing) > 1 else ""
        return (
            f"In {found.fmt} {worst.site}{others} overflow{'' if others else 's'}: "
            f"{_percent(worst.overflow)} of a tensor of {worst.worst_op} leaves the format's range."
        )
    change = found.sum if found.measured is None else found.measured
    if not found.sites or not found.loss:
        return f"In {found.fmt} nothing of step {found.step} is lost."
    return (
        f"In {found.fmt} the loss of step {found.step} moves from {found.loss:.5g} by {change:+.2e} "
        f"({100 * change / abs(found.loss):+.2g} %): {_most_of_it(found)}."
    )


def _most_of_it(found: PrecisionLoss) -> str:
    named: list[SiteLoss] = []
    for each in found.sites[:3]:
        named.append(each)
        if sum(site.share for site in named) >= _MOST:
            break
    sites = [each.site for each in named]
    words = sites[0] if len(sites) == 1 else f"{', '.join(sites[:-1])} and {sites[-1]}"
    return f"{_percent(sum(each.share for each in named))} of the error comes from {words}"


def sum_sentence(found: PrecisionLoss) -> str:
    """Say what the parts add up to, and what was measured."""
    if found.measured is None:
        why = "overflow" if any(each.overflow for each in found.sites) else "could not be computed"
        return f"The sites add up to {found.sum:+.3e}, each rounded alone; all of them together {why}."
    return (
        f"The sites add up to {found.sum:+.3e}; with every site in {found.fmt} the loss really moves by "
        f"{found.measured:+.3e}."
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
