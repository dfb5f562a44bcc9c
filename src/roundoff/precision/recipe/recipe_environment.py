"""What is asked of every recipe from outside the code that applies it: by the environment, or by a block around it."""

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

# == Leaves word of every `apply_recipe`, so that a tool that steers a script knows that its steering arrived.

APPLIED_VARIABLE = "ROUNDOFF_APPLIED_TO"
"""Names the file that gets a line for every call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeApplication:
    """One call of `apply_recipe`: the recipe that came of it, and the model it met."""

    recipe_toml: str
    sites: Mapping[str, str]
    """The name of every module inside the model, and its class."""


def write_applied_recipe(model: nn.Module, recipe: Recipe) -> None:
    """Write down that a recipe was applied, if somebody asked for it through `ROUNDOFF_APPLIED_TO`."""
    path = os.environ.get(APPLIED_VARIABLE, "")
    if path:
        sites = {site_of(name): type(module).__name__ for name, module in model.named_modules() if site_of(name)}
        append_lines(Path(path), [to_json({"recipe": to_toml(recipe), "sites": sites})])


def read_applied_recipes(path: Path) -> list[RecipeApplication]:
    """Return the calls that a process left word of, in their order; none if there is no such file."""
    return list(read_lines(path, _application_from_json))


def _application_from_json(line: dict[str, JsonValue]) -> RecipeApplication:
    recipe, sites = line.get("recipe"), line.get("sites")
    if not isinstance(recipe, str) or not isinstance(sites, dict):
        raise ValueError("it does not say which recipe was applied")
    return RecipeApplication(recipe_toml=recipe, sites={name: str(kind) for name, kind in sites.items()})


RECIPE_VARIABLE: Final = "ROUNDOFF_RECIPE"

Change = Callable[[Recipe], Recipe]


@dataclass(slots=True)
class _OutsideChanges:
    """Of the whole process: a block surrounds code that applies recipes, and backward passes in threads of torch."""

    changes: list[Change] = field(default_factory=list)
    frozen_after: int | None = None
    loss_scale: float | None = None


_NOW: Final = _OutsideChanges()


def recipe_in_environment() -> Recipe | None:
    """Return the recipe that `ROUNDOFF_RECIPE` names, to take the place of the one a script applies, or None.

    Raises:
        RecipeError: there is no such recipe; the text names the variable.
    """
    text = os.environ.get(RECIPE_VARIABLE, "")
    if not text:
        return None
    try:
        return find_recipe(text)
    except RecipeError as error:
        raise RecipeError(f"In the environment variable {RECIPE_VARIABLE}: {error}") from error


def changed(recipe: Recipe) -> Recipe:
    """Return what the blocks around this call make of a recipe."""
    for change in _NOW.changes:
        recipe = change(recipe)
    return recipe


@contextmanager
def changing_recipes(change: Change) -> Iterator[None]:
    """Apply what `change` makes of it instead of every recipe that is applied inside the block."""
    _NOW.changes.append(change)
    try:
        yield
    finally:
        _NOW.changes.remove(change)


@contextmanager
def freezing_scales(*, after: int, loss_scale: float | None = None) -> Iterator[None]:
    """Keep scales that follow the data as they are inside the block, once they have followed `after` steps.

    They are dynamic loss scales, the scales of operands, and fixed-point scales of the method `auto`. One that has seen
    no data yet takes its first.

    Args:
        after: Steps, counted from the beginning of each training.
        loss_scale: What dynamic loss scales are from now on; None leaves them where they are.
    """
    before = _NOW.frozen_after, _NOW.loss_scale
    _NOW.frozen_after, _NOW.loss_scale = after, loss_scale
    try:
        yield
    finally:
        _NOW.frozen_after, _NOW.loss_scale = before


def is_frozen(*, num_steps: int) -> bool:
    """Whether a scale that has followed so many steps stays as it is."""
    return _NOW.frozen_after is not None and num_steps >= _NOW.frozen_after


def frozen_loss_scale() -> float | None:
    """Return what dynamic loss scales are frozen at, if a number was given."""
    return _NOW.loss_scale
