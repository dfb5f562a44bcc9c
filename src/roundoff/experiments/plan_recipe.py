"""The recipe of a plan, and its TOML file with the evidence as comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from roundoff.errors import PlanError
from roundoff.experiments.plan_overrides import overrides_of, pattern_of
from roundoff.experiments.plan_sites import Proposal, SitePlan
from roundoff.formats import format_named
from roundoff.precision.op_lists import PRODUCTS
from roundoff.precision.op_names import op_name
from roundoff.precision.recipe import Recipe
from roundoff.precision.recipe_toml import to_toml
from roundoff.precision.scale_settings import DYNAMIC
from roundoff.precision.sites import names_an_op

_OPERANDS_AS = {"e4m3": "mxfp8", "e5m2": "mxfp8"}
"""Operands have a scale per tensor, which measuring knows nothing of; a format with scales of its own comes nearest."""
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


def planned_recipe(proposal: Proposal, base: Recipe, *, name: str, description: str = "", safe: bool = False) -> Recipe:
    """Return the base recipe with the formats of the proposal.

    The loss is scaled if the proposal asks for it. `safe` adds what no site can: a loss scale and master weights.
    """
    recipe = replace(
        base,
        name=name,
        description=description or base.description,
        overrides={**base.overrides, **_reachable(overrides_of(proposal), base)},
    )
    if base.compute == "cast":
        recipe = _cast_to(recipe, proposal.base_format)
    elif base.compute != "operands":
        recipe = replace(recipe, compute_format=proposal.base_format)
    if (proposal.scaling is not None or safe) and _lacks_scale(recipe):
        recipe = replace(recipe, loss_scale=replace(DYNAMIC, initial=proposal.first_scale))
    if safe and recipe.narrow_weights:
        recipe = replace(recipe, master_weights=True, update="nearest")
    return recipe


def can_be_safer(recipe: Recipe) -> bool:
    """Whether there is something left that makes any narrow training safer: a loss scale, master weights."""
    return _lacks_scale(recipe) or (recipe.narrow_weights and not recipe.master_weights)


def recipe_text(recipe: Recipe, proposal: Proposal, *, evidence: Sequence[str]) -> str:
    """Return the TOML of a recipe, with what is known about it and about each of its sites as comments."""
    lines = [*(f"# {line}".rstrip() for line in evidence), ""]
    before, table, overrides = to_toml(recipe).partition("[overrides]\n")
    lines += [*before.splitlines(), *table.splitlines()]
    reasons = _reasons(proposal)
    for line in overrides.splitlines():
        lines += [f"# {reason}" for reason in reasons.get(line.partition(" = ")[0].strip('"'), ())]
        lines.append(line)
    lines += ["", "# What was measured, by site: format, parameters, expected change of the loss", *_table(proposal)]
    return "\n".join(lines) + "\n"


def _reachable(overrides: Mapping[str, str], base: Recipe) -> dict[str, str]:
    """Return the overrides that the recipe can follow: autocast knows sites only."""
    return {key: fmt for key, fmt in overrides.items() if base.compute != "autocast" or not names_an_op(key)}


def _lacks_scale(recipe: Recipe) -> bool:
    """Whether a loss scale is missing; a format with the range of fp32, such as bf16, needs none."""
    return not recipe.loss_scale.may_skip and format_named(recipe.compute_format).largest < _LARGE


def _cast_to(recipe: Recipe, fmt: str) -> Recipe:
    inputs = recipe.inputs if recipe.inputs == "keep" else fmt
    norms = recipe.norms if recipe.norms == "fp32" else fmt
    # One value at a time would not pass the recipe's own checks.
    return replace(recipe, weights=fmt, compute_format=fmt, inputs=inputs, norms=norms)


def _reasons(proposal: Proposal) -> dict[str, tuple[str, ...]]:
    """Return what is to be said above each override."""
    found: dict[str, tuple[str, ...]] = {}
    for each in proposal.sites:
        if each.ops:
            for op in each.ops:
                own = tuple(reason for reason in each.reasons if reason.startswith(f"{op} "))
                found[f"{pattern_of(each.site)}:{op}"] = own
        else:
            found[pattern_of(each.site)] = each.reasons or ("narrow inside a site that is wide",)
    return found


def _table(proposal: Proposal) -> Iterator[str]:
    width = max((len(each.site) for each in proposal.sites), default=0)
    for each in proposal.sites:
        yield f"# {each.site.ljust(width)}  {_formats(each)}  {each.num_parameters:>10}  {each.loss_change:9.2e}"


def _formats(each: SitePlan) -> str:
    return each.fmt + "".join(f", {op} {fmt}" for op, fmt in each.ops.items())
