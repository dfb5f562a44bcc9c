"""How the model trained: its recipe, as TOML that can be trained with again, and its optimizers."""

from __future__ import annotations

from roundoff.report.markup import Html, joined, tag
from roundoff.report.page import facts
from roundoff.report.run_view import RunView
from roundoff.report.section import Section
from roundoff.runs import JsonValue, OptimizerFacts, to_json


def recipe_section(view: RunView) -> Section:
    """Show the recipe of each optimizer, or say that the model computes as it was written."""
    structures = view.run.structures()
    optimizers = structures[-1].optimizers if structures else ()
    name = view.run.info.recipe
    if name is not None:
        told = f"The model trained by the recipe {name}."
    elif any(optimizer.recipe for optimizer in optimizers):
        told = "The model trained by a recipe that the script applied."
    else:
        told = "No recipe was applied: the model computes in the formats of its own parameters."
    return Section(
        key="recipe",
        title="Recipe and optimizers",
        body=joined(tag("p", told), *map(_optimizer, optimizers)),
    )


def _optimizer(optimizer: OptimizerFacts) -> Html:
    groups = [facts({name: _value(value) for name, value in group.items()}) for group in optimizer.groups[:8] if group]
    toml = [tag("pre", optimizer.recipe)] if optimizer.recipe else []
    return joined(tag("h3", optimizer.name), *groups, *toml)


def _value(value: JsonValue) -> str:
    return value if isinstance(value, str) else to_json(value)
