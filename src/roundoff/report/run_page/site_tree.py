"""The model as a tree; each site is coloured by how close its values are to the limits of the formats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from roundoff.diagnose.diagnosis import RunView
from roundoff.diagnose.numbers.site_ranges import DEEPEST, LOSING, NARROW, SiteNode, SiteRange, site_ranges, site_tree
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.parts import percent
from roundoff.report.run_page.section import Section, choose_steps
from roundoff.runs import Finding, Severity

MAX_SITES = 1500
_DIFFERS = (
    "Differs: the largest difference from the reference, divided by what inputs and formats explain; above 1 "
    "there is another cause."
)
NUM_LEVELS = 5
UNFOLDED = 40
"""A tree with at most this many sites is shown whole, of a larger one only the first levels."""

_EXPLAINED = (
    "Each line is a site with everything inside it, over the recorded steps; a badge marks what a finding names. "
    "Introduced: the largest error that an op "
    "adds to that of its inputs, in ulp; roundoff record --reference fp64 measures it. Beyond FORMAT: the share "
    "of its tensors with a value outside the range of the format. Lost in FORMAT: the share of its elements that would "
    "become 0, if histograms were recorded. Subnormal, zero: the share of elements. The stronger the colour, the "
    "closer to a problem."
)


def sites_section(view: RunView) -> Section | None:
    """Show the tree of sites; None if no step was recorded."""
    steps = {(step.step, id(step.holder)): step for step in choose_steps(view)[0]}.values()
    ranges = site_ranges((step.step, step.holder) for step in steps)
    if not ranges:
        return None
    shown = dict(list(ranges.items())[:MAX_SITES])
    tree = site_tree(shown)
    excess = site_excess(view)
    health = site_health(view.findings)
    heads = ["site", "introduced", "absmax", "not finite", *(f"beyond {name}" for name in NARROW)]
    heads += [*(f"lost in {name}" for name in LOSING), "subnormal", "zero"]
    if excess is not None:
        heads.insert(1, "differs")
    head = tag("div", *(tag("span", name) for name in heads), class_="site-row site-head")
    depth = DEEPEST if len(shown) <= UNFOLDED else 1
    box = tag("input", type="search", autocomplete="off", spellcheck="false")
    filtering = tag("p", tag("label", "Filter ", box), " ", tag("output"), class_="filter", hidden=True)
    rows = tag("div", *(_node(node, excess, health, depth=0, unfolded=depth) for node in tree), class_="site-rows")
    place = tag("div", join_html(head, rows), class_="scrolling", tabindex=0, role="region", aria_label="sites")
    left_out = len(ranges) - len(shown)
    num_steps = len({*view.run.steps, *view.run.replayed_steps})
    notes = [f"{left_out} more sites are left out; roundoff runs show lists their events."] if left_out else []
    if len(steps) < num_steps:
        notes.append(f"{len(steps)} of {num_steps} recorded steps are counted: those that can be selected above.")
    return Section(
        key="sites",
        title="Sites",
        body=join_html(
            tag("p", _EXPLAINED if excess is None else f"{_DIFFERS} {_EXPLAINED}", class_="faint"),
            tag("div", filtering, place, class_="sites" if excess is None else "sites compared"),
        ),
        thinned=notes,
    )


def site_health(findings: Sequence[Finding]) -> dict[str, Finding]:
    """Return by site, and by what holds it, the gravest finding that names it; notes do not count."""
    found: dict[str, Finding] = {}
    for finding in findings:
        owner = finding.site or (finding.parameter or "").rpartition(".")[0]
        if finding.severity is Severity.NOTE or not owner:
            continue
        parts = owner.split(".")
        for depth in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:depth]), finding)
    return found


def site_excess(view: RunView) -> dict[str, float] | None:
    """Return by site, and by what holds it, how many times its largest difference is what inputs and formats explain.

    None where there is no reference.
    """
    if view.comparison is None:
        return None
    found: dict[str, float] = {}
    for row in view.comparison.rows:
        parts = row.site.split(".")
        for depth in range(1, len(parts) + 1):
            site = ".".join(parts[:depth])
            found[site] = max(found.get(site, 0.0), row.excess)
    return found


def _node(
    node: SiteNode,
    excess: Mapping[str, float] | None,
    health: Mapping[str, Finding],
    *,
    depth: int,
    unfolded: int,
) -> Html:
    row = _row(node, excess, health.get(node.site), depth=depth)
    if not node.children:
        return tag("div", row, class_="site leaf", data_site=node.site)
    children = [_node(child, excess, health, depth=depth + 1, unfolded=unfolded) for child in node.children]
    return tag("details", tag("summary", row), *children, class_="site", data_site=node.site, open=depth < unfolded)


def _row(node: SiteNode, excess: Mapping[str, float] | None, finding: Finding | None, *, depth: int) -> Html:
    total = node.total
    badge = [] if finding is None else [" ", tag("em", finding.rule, class_=f"severity {finding.severity}")]
    name = tag("span", node.name, *badge, class_="site-name", title=node.site, style=f"--depth:{depth}")
    beyond = [_share(total.share_beyond(each)) for each in NARROW]
    return tag(
        "span",
        name,
        *([] if excess is None else [_differs(excess.get(node.site))]),
        _introduced_error_html(total),
        tag("span", f"{total.absmax:.3g}"),
        _nonfinite(total),
        *beyond,
        *(_lost_share_html(total.share_lost(each)) for each in LOSING),
        _share(total.subnormal_share),
        tag("span", percent(total.zero_share)),
        class_="site-row",
    )


def _differs(excess: float | None) -> Html:
    """Return how far a site is from the reference beyond what is explained; up to 1 nothing is wrong."""
    if not excess:
        return tag("span")
    level = (
        0 if excess <= 1 else NUM_LEVELS if math.isinf(excess) else _clamp_level(round(math.log10(excess)), lowest=1)
    )
    return tag("span", f"{excess:.2g}", class_=_level_class(level))


def _lost_share_html(share: float | None) -> Html:
    return tag("span", "-") if share is None else _share(share)


def _introduced_error_html(total: SiteRange) -> Html:
    """Return the error in ulp; the colour grows with its exponent, from 10 to a hundred thousand."""
    error = total.introduced_ulps
    if error is None:
        return tag("span", "-")
    exponent = math.log10(error) if math.isfinite(error) and error > 0 else (0.0 if error == 0 else NUM_LEVELS)
    return tag("span", f"{error:.2g}", class_=_level_class(_clamp_level(math.floor(exponent))))


def _nonfinite(total: SiteRange) -> Html:
    words = str(total.num_nonfinite) if total.num_nonfinite else ""
    return tag("span", words, class_=_level_class(NUM_LEVELS if total.num_nonfinite else 0))


def _level_class(level: int) -> str | None:
    return f"level{level}" if level else None


def _share(share: float) -> Html:
    """Return a share of which even a little counts: the colour grows with its logarithm."""
    level = 0 if share <= 0 else _clamp_level(NUM_LEVELS + round(math.log10(share)), lowest=1)
    return tag("span", percent(share), class_=_level_class(level))


def _clamp_level(level: int, *, lowest: int = 0) -> int:
    return max(lowest, min(NUM_LEVELS, level))
