"""Recipes: how a model trains. Formats, loss scaling, master weights, and overrides for single sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.lazy_names import lazy_names

if TYPE_CHECKING:
    from roundoff.precision.apply import apply_recipe as apply_recipe
    from roundoff.precision.loss_scaler import LossScaler as LossScaler
    from roundoff.precision.loss_scaler import ScaledStep as ScaledStep
    from roundoff.precision.optimizer import RecipeOptimizer as RecipeOptimizer
    from roundoff.precision.recipe.named_recipes import find_recipe as find_recipe
    from roundoff.precision.recipe.named_recipes import known_recipes as known_recipes
    from roundoff.precision.recipe.named_recipes import recipe_named as recipe_named
    from roundoff.precision.recipe.recipe import OperandSettings as OperandSettings
    from roundoff.precision.recipe.recipe import Recipe as Recipe
    from roundoff.precision.recipe.recipe import ScaleSettings as ScaleSettings
    from roundoff.precision.recipe.recipe import scale_settings as scale_settings
    from roundoff.precision.recipe.toml import to_toml as to_toml

_HOMES = {
    "LossScaler": "roundoff.precision.loss_scaler",
    "OperandSettings": "roundoff.precision.recipe.recipe",
    "Recipe": "roundoff.precision.recipe.recipe",
    "RecipeOptimizer": "roundoff.precision.optimizer",
    "ScaleSettings": "roundoff.precision.recipe.recipe",
    "ScaledStep": "roundoff.precision.loss_scaler",
    "apply_recipe": "roundoff.precision.apply",
    "find_recipe": "roundoff.precision.recipe.named_recipes",
    "known_recipes": "roundoff.precision.recipe.named_recipes",
    "recipe_named": "roundoff.precision.recipe.named_recipes",
    "scale_settings": "roundoff.precision.recipe.recipe",
    "to_toml": "roundoff.precision.recipe.toml",
}

__all__ = list(_HOMES)

__getattr__ = lazy_names(__name__, _HOMES)
