"""Changes recipes from outside the script that applies them: by environment variables, or by a block around it.

A tool that steers a script needs to know that the script applied a recipe at all: `ROUNDOFF_APPLIED_TO` names a file
that gets a line for every call of `apply_recipe`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.recipe.named_recipes import find_recipe
from roundoff.precision.recipe.recipe import Recipe
from roundoff.precision.recipe.site_formats import site_of
from roundoff.precision.recipe.toml import to_toml
from roundoff.runs import JsonValue, to_json
from roundoff.runs.files.lines import append_lines, read_lines

APPLIED_VARIABLE = "ROUNDOFF_APPLIED_TO"
RECIPE_VARIABLE: Final = "ROUNDOFF_RECIPE"

RecipeChange = Callable[[Recipe], Recipe]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeApplication:
    """One call of `apply_recipe`: the recipe that was applied, and the model."""

    recipe_toml: str
    sites: Mapping[str, str]
    """The name of every module inside the model, and its class."""


def write_applied_recipe(model: nn.Module, recipe: Recipe) -> None:
    """Append a line about an applied recipe to the file that `ROUNDOFF_APPLIED_TO` names, if it is set."""
    path = os.environ.get(APPLIED_VARIABLE, "")
    if path:
        sites = {site_of(name): type(module).__name__ for name, module in model.named_modules() if site_of(name)}
        append_lines(Path(path), [to_json({"recipe": to_toml(recipe), "sites": sites})])


def read_applied_recipes(path: Path) -> list[RecipeApplication]:
    """Return the calls that a process has written to the file, in order; none if there is no such file."""
    return list(read_lines(path, _application_from_json))


def _application_from_json(line: dict[str, JsonValue]) -> RecipeApplication:
    recipe, sites = line.get("recipe"), line.get("sites")
    if not isinstance(recipe, str) or not isinstance(sites, dict):
        raise ValueError("the applied recipe is missing")
    return RecipeApplication(recipe_toml=recipe, sites={name: str(kind) for name, kind in sites.items()})


@dataclass(slots=True)
class _OutsideChanges:
    """Global to the process, not to a thread: torch runs backward passes in threads of its own."""

    changes: list[RecipeChange] = field(default_factory=list)
    frozen_after: int | None = None
    loss_scale: float | None = None


_NOW: Final = _OutsideChanges()


def recipe_in_environment() -> Recipe | None:
    """Return the recipe that `ROUNDOFF_RECIPE` names, which replaces the one a script applies, or None.

    Raises:
        RecipeError: there is no such recipe; the message names the variable.
    """
    text = os.environ.get(RECIPE_VARIABLE, "")
    if not text:
        return None
    try:
        return find_recipe(text)
    except RecipeError as error:
        raise RecipeError(f"In the environment variable {RECIPE_VARIABLE}: {error}") from error


def apply_changes(recipe: Recipe) -> Recipe:
    """Return the recipe as changed by all `changing_recipes` blocks around this call."""
    for change in _NOW.changes:
        recipe = change(recipe)
    return recipe


@contextmanager
def changing_recipes(change: RecipeChange) -> Iterator[None]:
    """Inside the block, apply `change(recipe)` instead of every recipe."""
    _NOW.changes.append(change)
    try:
        yield
    finally:
        _NOW.changes.remove(change)


@contextmanager
def freezing_scales(*, after: int, loss_scale: float | None = None) -> Iterator[None]:
    """Inside the block, freeze the scales that adapt to the data, once they have done so for `after` steps.

    This affects dynamic loss scales, operand scales, and fixed-point scales with the method `auto`. A scale that has
    seen no data yet is still set from the first data.

    Args:
        after: A number of steps, counted from the start of each training.
        loss_scale: The value of dynamic loss scales from now on; None keeps their current value.
    """
    before = _NOW.frozen_after, _NOW.loss_scale
    _NOW.frozen_after, _NOW.loss_scale = after, loss_scale
    try:
        yield
    finally:
        _NOW.frozen_after, _NOW.loss_scale = before


def is_frozen(*, num_steps: int) -> bool:
    """Whether a scale that has adapted for `num_steps` steps is frozen now."""
    return _NOW.frozen_after is not None and num_steps >= _NOW.frozen_after


def frozen_loss_scale() -> float | None:
    """Return the value at which dynamic loss scales are frozen, if one was given."""
    return _NOW.loss_scale
