"""The overrides that give every site of a plan its format, in the order in which a recipe reads them."""

from __future__ import annotations

import re

from roundoff.experiments.plan_sites import Proposal, SitePlan
from roundoff.experiments.plan_units import MODEL_SITE, WIDE


def overrides_of(proposal: Proposal) -> dict[str, str]:
    """Return overrides by site and op: `{"blocks.1.attn:softmax": "fp32"}`.

    An override covers all sites inside its own and later ones win, so outer sites come first, and what is inside and
    narrow is named again. Norms never are: a recipe keeps their parameters in a format of their own, and wide is safe.
    """
    found: dict[str, str] = {}
    formats: dict[str, str] = {}
    for each in sorted(proposal.sites, key=_depth):
        around = _inherited(each.site, formats, base=proposal.base_format)
        narrow_norm = each.is_norm and each.fmt != WIDE
        if each.fmt != around and each.site != MODEL_SITE and not narrow_norm:
            found[pattern_of(each.site)] = each.fmt
            formats[each.site] = each.fmt
    for each in proposal.sites:
        found |= {f"{pattern_of(each.site)}:{op}": fmt for op, fmt in _ops(each, base=proposal.base_format).items()}
    return found


def _ops(each: SitePlan, *, base: str) -> dict[str, str]:
    """Return the ops that need a line of their own; the model's own code has no other way."""
    if each.site == MODEL_SITE and each.fmt != base:
        return {**dict.fromkeys(each.all_ops, each.fmt), **each.ops}
    return dict(each.ops)


def _depth(each: SitePlan) -> int:
    return each.site.count(".")


def _inherited(site: str, formats: dict[str, str], *, base: str) -> str:
    parts = site.split(".")
    around = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
    return next((formats[outer] for outer in around if outer in formats), base)


def pattern_of(site: str) -> str:
    """Return a pattern that matches this site only.

    >>> pattern_of("heads.[a]")
    'heads.[[]a]'
    """
    return re.sub(r"([*?[])", r"[\1]", site)
