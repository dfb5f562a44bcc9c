"""What is asked of every recipe from outside the code that applies it: by the environment, or by a block around it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from roundoff.errors import RecipeError
from roundoff.precision.named import find_recipe
from roundoff.precision.recipe import Recipe

RECIPE_VARIABLE: Final = "ROUNDOFF_RECIPE"

Change = Callable[[Recipe], Recipe]


@dataclass(slots=True)
class _Steering:
    """Of the whole process: a block surrounds code that applies recipes, and backward passes in threads of torch."""

    changes: list[Change] = field(default_factory=list)
    frozen_after: int | None = None
    loss_scale: float | None = None


_NOW: Final = _Steering()


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
