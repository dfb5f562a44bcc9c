"""What a recipe adds to a model besides formats: fixed point and compressed activations."""

from __future__ import annotations

from typing import Any

from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.recipe import Recipe
from roundoff.precision.shared import Extra


def extras_for(model: nn.Module, recipe: Recipe) -> list[Extra]:
    """Put onto the model what the recipe adds, and return the handles that take it off again."""
    extras: list[Extra] = []
    if recipe.compute == "fixed":
        extras.append(_fixed_point(model, recipe))
    if recipe.least_activation_bits:
        from roundoff.precision.activations import ActivationSettings, compress_activations

        extras.append(compress_activations(model, ActivationSettings(bits=_activation_bits(recipe))))
    return extras


def _activation_bits(recipe: Recipe) -> int | dict[str, int]:
    """Return one number of bits, or a mapping in which that number is for the sites that no pattern matches."""
    if not recipe.activation_sites:
        return recipe.activation_bits
    others = {"*": recipe.activation_bits} if recipe.activation_bits else {}
    return {**others, **recipe.activation_sites}


def _fixed_point(model: nn.Module, recipe: Recipe) -> Extra:
    from roundoff.precision.fixed import FixedPointSettings, convert_to_fixed_point

    plain = {key: value for key, value in recipe.fixed.items() if key != "norms"}
    plain["sites"] = {**plain.get("sites", {}), **_sites(recipe)}
    settings = FixedPointSettings.from_dict(plain)
    return convert_to_fixed_point(model, settings, norms=recipe.fixed.get("norms", "float"))


def _sites(recipe: Recipe) -> dict[str, Any]:
    """Return the overrides as fixed point knows them: a site in fp32 is one whose tensors are left alone."""
    for pattern, fmt in recipe.overrides.items():
        if fmt != "fp32":
            raise RecipeError.explain(
                f'The override "{pattern}" = "{fmt}" cannot be in fixed point.',
                why="overrides of this recipe are fp32; other bits are settings of their own.",
                fix=f'write [fixed.sites."{pattern}".weight] bits = 6, and so on, into a recipe file.',
            )
    kinds = ("weight", "bias", "activation", "gradient", "error")
    return {pattern: {kind: {"method": "none"} for kind in kinds} for pattern in recipe.overrides}
