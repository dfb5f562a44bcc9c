"""`roundoff recipes`: the training recipes and when to use which, and one of them as TOML."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import json_option
from roundoff.cli.terminal import echo

if TYPE_CHECKING:
    from roundoff.precision import Recipe


@click.group(
    "recipes",
    invoke_without_command=True,
    subcommand_metavar="[show NAME]",
    epilog="Example: roundoff recipes show O2 > mine.toml",
)
@json_option("Print one JSON array.")
@click.pass_context
def recipes_command(context: click.Context, as_json: bool) -> None:
    """List the recipes a model can train by, and when to use which."""
    if context.invoked_subcommand is None:
        from roundoff.precision import known_recipes

        recipes = known_recipes()
        if as_json:
            echo_json("recipes", [asdict(recipe) for recipe in recipes], indent=1)
        else:
            echo(_list(recipes))


@recipes_command.command("show", epilog="Example: roundoff recipes show O2+act4")
@click.argument("name")
@json_option("Print one JSON object.")
def show_command(name: str, as_json: bool) -> None:
    """Print the recipe NAME, a combination such as O2+act4, or a recipe file, as TOML."""
    from roundoff.precision import find_recipe, to_toml

    recipe = find_recipe(name)
    if as_json:
        echo_json("recipes-show", asdict(recipe), indent=1)
    else:
        echo(f"# Arithmetic: {_arithmetic(recipe)}\n{to_toml(recipe)}", nl=False)


def _arithmetic(recipe: Recipe) -> str:
    """Say whether a recipe is computed by the device or emulated."""
    if recipe.compute == "operands":
        missing = next((name for name in ("torch", "torchao") if find_spec(name) is None), None)
        if missing is not None:  # and torch, which takes seconds, need not be imported
            return f"emulated: {missing} is not installed."
        from roundoff.precision.compute.torchao_kernels import choose_kernels

        return f"{choose_kernels(recipe).text}."
    if recipe.compute == "fixed" or recipe.arithmetic == "emulated":
        return "emulated on every device: computed in fp32 from rounded values."
    if recipe.compute in ("plain", "autocast") or recipe.arithmetic == "native":
        return "native: computed by the device."
    return "native; emulated on a CPU, where that is faster."


def _list(recipes: tuple[Recipe, ...]) -> str:
    width = max(len(recipe.name) for recipe in recipes)
    lines = [f"{recipe.name:{width}}  {recipe.description}" for recipe in recipes]
    return "\n".join(
        [*lines, "", "All settings of one: roundoff recipes show O2. What they mean: roundoff docs recipes"]
    )
