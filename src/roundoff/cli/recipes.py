"""`roundoff recipes`: the training recipes and when to use which, and one of them as TOML."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

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
        echo(json.dumps([asdict(recipe) for recipe in recipes], indent=1) if as_json else _list(recipes))


@recipes_command.command("show", epilog="Example: roundoff recipes show O2+act4")
@click.argument("name")
@json_option("Print one JSON object.")
def show_command(name: str, as_json: bool) -> None:
    """Print the recipe NAME, a combination such as O2+act4, or a recipe file, as TOML."""
    from roundoff.precision import find_recipe, to_toml

    recipe = find_recipe(name)
    echo(json.dumps(asdict(recipe), indent=1) if as_json else to_toml(recipe), nl=as_json)


def _list(recipes: tuple[Recipe, ...]) -> str:
    width = max(len(recipe.name) for recipe in recipes)
    lines = [f"{recipe.name:{width}}  {recipe.description}" for recipe in recipes]
    return "\n".join(
        [*lines, "", "All settings of one: roundoff recipes show O2. What they mean: roundoff docs recipes"]
    )
