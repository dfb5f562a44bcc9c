"""The rounding of the narrowest format that a run computed in, where its tensors' dtypes do not tell it."""

from __future__ import annotations

from roundoff.errors import RoundoffError
from roundoff.formats import format_named
from roundoff.precision import Recipe, find_recipe
from roundoff.precision.fixed.settings import KINDS, FixedPointSettings
from roundoff.precision.recipe_toml import from_toml
from roundoff.runs import Run


def unit_of_run(run: Run, *, rank: int = 0) -> float:
    """Return the largest relative error of one rounding that the run's recipe asks for; 0 without a recipe.

    Recipes that are emulated keep narrow numbers in wide tensors. One that this version does not know counts as none.
    """
    structures = run.structures(rank=rank)
    written = [optimizer.recipe for structure in structures for optimizer in structure.optimizers if optimizer.recipe]
    try:
        if written:
            return unit_of_recipe(from_toml(written[0], where=f"{run.path}", named=find_recipe))
        return unit_of_recipe(find_recipe(run.info.recipe)) if run.info.recipe else 0.0
    except RoundoffError:
        return 0.0


def unit_of_recipe(recipe: Recipe) -> float:
    """Return the largest relative error of one rounding in a step under the recipe.

    >>> unit_of_recipe(find_recipe("O2")), unit_of_recipe(find_recipe("fp32"))
    (0.00048828125, 0.0)
    """
    formats: list[str] = []
    if recipe.compute in ("cast", "lists", "autocast"):
        formats = [recipe.compute_format, recipe.weights]
    elif recipe.compute == "operands":
        formats = [recipe.operands.forward, recipe.operands.backward]
    units = [format_named(name).eps / 2 for name in formats if name != "fp32"]
    if recipe.compute == "fixed":
        settings = FixedPointSettings.from_dict({key: value for key, value in recipe.fixed.items() if key != "norms"})
        units.append(2.0 ** (2 - min(getattr(settings, kind).bits for kind in KINDS)))  # of a tensor's largest number
    if recipe.least_activation_bits:
        units.append(2.0 ** (1 - recipe.least_activation_bits))  # of the range of a group
    return max(units, default=0.0)
