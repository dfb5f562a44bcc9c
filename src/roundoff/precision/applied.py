"""Leaves word of every `apply_recipe`, so that a tool that steers a script knows that its steering arrived."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from roundoff.precision.recipe import Recipe
from roundoff.precision.recipe_toml import to_toml
from roundoff.precision.sites import site_of
from roundoff.runs import JsonValue, to_json
from roundoff.runs.lines import append_lines, read_lines

APPLIED_VARIABLE = "ROUNDOFF_APPLIED_TO"
"""Names the file that gets a line for every call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """One call of `apply_recipe`: the recipe that came of it, and the model it met."""

    recipe_toml: str
    sites: Mapping[str, str]
    """The name of every module inside the model, and its class."""


def leave_word(model: nn.Module, recipe: Recipe) -> None:
    """Write down that a recipe was applied, if somebody asked for it through `ROUNDOFF_APPLIED_TO`."""
    path = os.environ.get(APPLIED_VARIABLE, "")
    if path:
        sites = {site_of(name): type(module).__name__ for name, module in model.named_modules() if site_of(name)}
        append_lines(Path(path), [to_json({"recipe": to_toml(recipe), "sites": sites})])


def read_applied(path: Path) -> list[Applied]:
    """Return the calls that a process left word of, in their order; none if there is no such file."""
    return list(read_lines(path, _applied))


def _applied(line: dict[str, JsonValue]) -> Applied:
    recipe, sites = line.get("recipe"), line.get("sites")
    if not isinstance(recipe, str) or not isinstance(sites, dict):
        raise ValueError("it does not say which recipe was applied")
    return Applied(recipe_toml=recipe, sites={name: str(kind) for name, kind in sites.items()})
