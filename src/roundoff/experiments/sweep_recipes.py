"""The recipes of a sweep: names, files beside it, or tables that its axes put together."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roundoff.errors import RecipeError, SweepError
from roundoff.precision import Recipe, find_recipe, recipe_named, to_toml
from roundoff.precision.recipe_toml import from_toml

_TABLE = "table"


def recipe_of(setting: object, *, folder: Path, where: str) -> tuple[str, str | None]:
    """Return the name of a recipe, and its whole TOML if the name alone does not say it.

    `setting` is a name, the path of a TOML file (seen from `folder`, where the sweep is), or a table as in such a file.

    Raises:
        SweepError: it is none of these, or the recipe cannot be.
    """
    try:
        if isinstance(setting, str) and not setting.endswith(".toml"):
            return recipe_named(setting).name, None
        if isinstance(setting, str):
            recipe = find_recipe(folder / setting)
        elif isinstance(setting, Mapping):
            recipe = _from_table(setting, folder=folder)
        else:
            raise SweepError.explain(
                f"{where} cannot set recipe = {setting!r}.", why="it must be a name, a TOML file, or a table."
            )
    except RecipeError as error:
        raise SweepError(f"{where} has a recipe that cannot be: {_about_a_table(error)}") from error
    return recipe.name, to_toml(recipe)


def _from_table(table: Mapping[str, Any], *, folder: Path) -> Recipe:
    base = table.get("base", "fp32")
    start = folder / base if isinstance(base, str) and base.endswith(".toml") else base
    name = str(base).removesuffix(".toml")
    text = "".join(f"{_key(key)} = {_inline(value)}\n" for key, value in {**table, "base": name}.items())
    return from_toml(text, where=_TABLE, named=lambda _: find_recipe(start), default_name=name)


def _about_a_table(error: RecipeError) -> str:
    """Return what is wrong with a recipe without the file and line it never had."""
    text = re.sub(rf"^Recipe file '{_TABLE}'(?: line \d+)?:? ", "", str(error))
    return text.replace("has an unknown", "an unknown", 1) if text.startswith("has ") else text


def _inline(value: Any) -> str:
    """Write a value that came out of a TOML file as TOML again, tables in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)
