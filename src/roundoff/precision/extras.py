"""What a recipe adds to a model besides formats: compressed activations."""

from __future__ import annotations

from torch import nn

from roundoff.precision.recipe import Recipe
from roundoff.precision.shared import Extra


def extras_for(model: nn.Module, recipe: Recipe) -> list[Extra]:
    """Put onto the model what the recipe adds, and return the handles that take it off again."""
    extras: list[Extra] = []
    if recipe.activation_bits:
        from roundoff.precision.activations import ActivationSettings, compress_activations

        extras.append(compress_activations(model, ActivationSettings(bits=recipe.activation_bits)))
    return extras
