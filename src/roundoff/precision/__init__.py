"""Recipes: how a model trains. Formats, loss scaling, master weights, and the sites that are exceptions."""

from roundoff.precision.apply import apply_recipe
from roundoff.precision.named import find_recipe, known_recipes, recipe_named
from roundoff.precision.optimizer import RecipeOptimizer
from roundoff.precision.recipe import OperandSettings, Recipe
from roundoff.precision.recipe_toml import to_toml
from roundoff.precision.scale_settings import ScaleSettings, scale_settings
from roundoff.precision.scaler import LossScaler, ScaledStep

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
