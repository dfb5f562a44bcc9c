"""The recipe of a proposal, its overrides, and its TOML file with the evidence as comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from roundoff.errors import PlanError
from roundoff.experiments.plan.site_choices import WIDE, Proposal, SitePlan
from roundoff.formats import format_named
from roundoff.precision.compute.torch_ops import PRODUCTS, op_name
from roundoff.precision.recipe.recipe import DYNAMIC, Recipe
from roundoff.precision.recipe.site_formats import names_an_op
from roundoff.precision.recipe.toml import to_toml
from roundoff.runs.records.event import MODEL

_OPERANDS_AS = {"e4m3": "mxfp8", "e5m2": "mxfp8"}
"""Operands have a scale per tensor, which the measurement does not know; a format with its own scales comes closest."""
_LARGE = 1e30
_PLANNED = ("cast", "lists", "autocast", "operands")


def check_base(base: Recipe) -> None:
    """Raise unless a plan can start from this recipe."""
    if base.compute not in _PLANNED:
        raise PlanError.explain(
            f"A plan cannot start from recipe '{base.name}'.",
            why="it computes in fp32." if base.compute == "plain" else "its bits are set per tensor, not per site.",
            fix="--base half, O2, O1, bf16, amp-bf16, fp8 or mxfp8; for fixed point: --fixed 8",
        )


def formats_of(base: Recipe) -> tuple[str, ...]:
    """Return the formats whose effects have to be measured for a recipe."""
    if base.compute != "operands":
        return (base.compute_format,)
    return (_OPERANDS_AS.get(base.operands.forward, base.operands.forward),)


def rounded_ops(base: Recipe) -> frozenset[str] | None:
    """Return the ops that a recipe rounds, or None for all of them."""
    if base.compute == "cast":
        return None
    return frozenset(op_name(function) for function in PRODUCTS)


def planned_recipe(proposal: Proposal, base: Recipe, *, name: str, safe: bool = False) -> Recipe:
    """Return the base recipe with the formats of the proposal.

    The loss is scaled if the proposal requires it. `safe` adds a loss scale and master weights, which no format of a
    site can replace.
    """
    overrides = overrides_of(proposal)
    if base.compute == "autocast":  # which has no overrides of single ops
        overrides = {key: fmt for key, fmt in overrides.items() if not names_an_op(key)}
    recipe = replace(
        base,
        name=name,
        overrides={**base.overrides, **overrides},
    )
    if base.compute == "cast":
        recipe = _cast_to(recipe, proposal.base_format)
    elif base.compute == "operands":  # the plan chooses the wide layers, not a share
        recipe = replace(recipe, operands=replace(base.operands, wide_share=0.0))
    else:
        recipe = replace(recipe, compute_format=proposal.base_format)
    if (proposal.scaling is not None or safe) and _lacks_scale(recipe):
        recipe = replace(recipe, loss_scale=replace(DYNAMIC, initial=proposal.first_scale))
    if safe and recipe.narrow_weights:
        recipe = replace(recipe, master_weights=True, update="nearest")
    return recipe


def can_be_safer(recipe: Recipe) -> bool:
    """Whether a loss scale or master weights, which make any narrow training safer, are missing."""
    return _lacks_scale(recipe) or (recipe.narrow_weights and not recipe.master_weights)


def recipe_text(recipe: Recipe, proposal: Proposal, *, evidence: Sequence[str]) -> str:
    """Return the TOML of a recipe, with the evidence and the reason of every override as comments."""
    lines = [*(f"# {line}".rstrip() for line in evidence), ""]
    before, table, overrides = to_toml(recipe).partition("[overrides]\n")
    lines += [*before.splitlines(), *table.splitlines()]
    reasons = _reasons_by_override(proposal)
    for line in overrides.splitlines():
        lines += [f"# {reason}" for reason in reasons.get(line.partition(" = ")[0].strip('"'), ())]
        lines.append(line)
    lines += [
        "",
        "# What was measured, by site: format, parameters, expected change of the loss",
        *_table_lines(proposal),
    ]
    return "\n".join(lines) + "\n"


def _lacks_scale(recipe: Recipe) -> bool:
    """Whether a loss scale is missing; a format with the range of fp32, such as bf16, needs none."""
    return not recipe.loss_scale.may_skip and format_named(recipe.compute_format).largest < _LARGE


def _cast_to(recipe: Recipe, fmt: str) -> Recipe:
    inputs = recipe.inputs if recipe.inputs == "keep" else fmt
    norms = recipe.norms if recipe.norms == "fp32" else fmt
    # All at once: a recipe with only some of these changed would be invalid.
    return replace(recipe, weights=fmt, compute_format=fmt, inputs=inputs, norms=norms)


def _reasons_by_override(proposal: Proposal) -> dict[str, tuple[str, ...]]:
    """Return the comments above each override."""
    found: dict[str, tuple[str, ...]] = {}
    for each in proposal.sites:
        if each.ops:
            for op in each.ops:
                own = tuple(reason for reason in each.reasons if reason.startswith(f"{op} "))
                found[f"{pattern_of(each.site)}:{op}"] = own
        else:
            found[pattern_of(each.site)] = each.reasons or ("narrow inside a wide site",)
    return found


def _table_lines(proposal: Proposal) -> Iterator[str]:
    width = max((len(each.site) for each in proposal.sites), default=0)
    for each in proposal.sites:
        formats = each.fmt + "".join(f", {op} {fmt}" for op, fmt in each.ops.items())
        yield f"# {each.site.ljust(width)}  {formats}  {each.num_parameters:>10}  {each.loss_change:9.2e}"


def overrides_of(proposal: Proposal) -> dict[str, str]:
    """Return overrides by site and op: `{"blocks.1.attn:softmax": "fp32"}`.

    An override covers all sites inside its own, and later ones win, so outer sites come first, and narrow sites inside
    a wide one are named again. Norms are never narrowed: a recipe keeps their parameters separately, and wide is safe.
    """
    found: dict[str, str] = {}
    formats: dict[str, str] = {}
    for each in sorted(proposal.sites, key=lambda plan: plan.site.count(".")):
        around = _inherited_format(each.site, formats, base=proposal.base_format)
        narrow_norm = each.is_norm and each.fmt != WIDE
        if each.fmt != around and each.site != MODEL and not narrow_norm:
            found[pattern_of(each.site)] = each.fmt
            formats[each.site] = each.fmt
    for each in proposal.sites:
        found |= {
            f"{pattern_of(each.site)}:{op}": fmt for op, fmt in _op_overrides(each, base=proposal.base_format).items()
        }
    return found


def _op_overrides(each: SitePlan, *, base: str) -> dict[str, str]:
    """Return the ops that need their own override; the model's own code can only be named by its ops."""
    if each.site == MODEL and each.fmt != base:
        return {**dict.fromkeys(each.all_ops, each.fmt), **each.ops}
    return dict(each.ops)


def _inherited_format(site: str, formats: dict[str, str], *, base: str) -> str:
    parts = site.split(".")
    around = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
    return next((formats[outer] for outer in around if outer in formats), base)


def pattern_of(site: str) -> str:
    """Return a pattern that matches only this site.

    >>> pattern_of("heads.[a]")
    'heads.[[]a]'
    """
    return re.sub(r"([*?[])", r"[\1]", site)
