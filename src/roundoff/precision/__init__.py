"""Recipes: how a model trains. Formats, loss scaling, master weights, and overrides for single sites."""

from roundoff.precision.apply import apply_recipe
from roundoff.precision.loss_scaler import LossScaler, ScaledStep
from roundoff.precision.optimizer import RecipeOptimizer
from roundoff.precision.recipe.loss_scale_settings import ScaleSettings, scale_settings
from roundoff.precision.recipe.named_recipes import find_recipe, known_recipes, recipe_named
from roundoff.precision.recipe.recipe import OperandSettings, Recipe
from roundoff.precision.recipe.toml import to_toml

__all__ = [
    "LossScaler",
    "OperandSettings",
    "Recipe",
    "RecipeOptimizer",
    "ScaleSettings",
    "ScaledStep",
    "apply_recipe",
    "find_recipe",
    "known_recipes",
    "recipe_named",
    "scale_settings",
    "to_toml",
]
