"""Reads and writes recipes as TOML; errors name the line, and what is written reads back as the same value."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from roundoff.errors import RecipeError
from roundoff.precision.recipe.fixed_point_settings import FixedPointSettings
from roundoff.precision.recipe.loss_scale_settings import ScaleSettings, scale_settings
from roundoff.precision.recipe.recipe import OperandSettings, Recipe

_TABLES = {"loss_scale": ScaleSettings, "operands": OperandSettings}
_FREE_TABLES = ("fixed", "activation_sites", "overrides")


def to_toml(recipe: Recipe) -> str:
    """Write every setting of a recipe.

    The tables `operands` and `fixed` are left out where the recipe does not use them and they have their defaults.
    """
    plain, tables = [], []
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if field.name in _TABLES:
            values = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            unused = field.name == "operands" and recipe.compute != "operands" and value == OperandSettings()
            tables += [] if unused else _table(field.name, values)
        elif field.name in _FREE_TABLES:
            entries = value.changes() if isinstance(value, FixedPointSettings) else value
            tables += _table(field.name, entries) if entries else []
        else:
            plain.append(f"{field.name} = {_toml(value)}")
    return "\n".join([*plain, *tables]) + "\n"


def read_recipe(path: Path, *, named: Callable[[str], Recipe]) -> Recipe:
    """Read a recipe file; `base = "O2"` starts from a named recipe instead of the defaults.

    Raises:
        RecipeError: the file cannot be read, or a setting is invalid; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeError.explain(
            f"Recipe file '{path}' cannot be read.",
            why="there is no such file.",
            fix="start from a known recipe: roundoff recipes show O2 > mine.toml",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError.explain(f"Recipe file '{path}' cannot be read.", why=f"{error}.") from error
    return from_toml(text, where=str(path), named=named, default_name=path.stem)


def from_toml(text: str, *, where: str, named: Callable[[str], Recipe], default_name: str = "") -> Recipe:
    """Make a recipe from the text of a TOML file; errors refer to it as `where`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError.explain(f"Recipe file '{where}' is not TOML.", why=f"{error}.") from error
    if not data:
        raise RecipeError.explain(
            f"Recipe file '{where}' is empty.",
            why="without any setting the model would silently train in plain fp32.",
            fix="start from a known recipe: roundoff recipes show O2 > mine.toml; for plain fp32 use the recipe fp32.",
        )
    _check_keys(data, {f.name for f in dataclasses.fields(Recipe)} | {"base"}, where=where, text=text)
    try:
        base = named(data.pop("base")) if "base" in data else None
        return _build(data, base, default_name=default_name, where=where, text=text)
    except RecipeError as error:
        if where in str(error):
            raise
        raise RecipeError(f"Recipe file '{where}'{_line_of(str(error), text)}: {error}") from error


def _build(data: dict[str, Any], base: Recipe | None, *, default_name: str, where: str, text: str) -> Recipe:
    values: dict[str, Any] = dict(data)
    for key, cls in _TABLES.items():
        if key not in data:
            continue
        before = getattr(base, key) if base else cls()
        values[key] = _settings(key, data[key], before, where=where, text=text)
    for key in _FREE_TABLES:
        if not isinstance(data.get(key, {}), Mapping):
            raise RecipeError.explain(f"Recipe setting {key} = {data[key]!r} is invalid.", why="it must be a table.")
    if "fixed" in data:
        values["fixed"] = FixedPointSettings.from_dict(data["fixed"])
    for field in dataclasses.fields(Recipe):
        if field.name in values and field.type in ("str", "bool") and type(values[field.name]).__name__ != field.type:
            raise RecipeError.explain(
                f"Recipe setting {field.name} = {values[field.name]!r} is invalid.", why=f"allowed: a {field.type}."
            )
    if base is None:
        return Recipe(**{"name": default_name, **values})
    return dataclasses.replace(base, **{"name": default_name or base.name, **values})


def _settings(key: str, value: Any, before: Any, *, where: str, text: str) -> Any:
    """Return the settings `before` with those of a table replaced, or the settings that a short loss scale means."""
    if not isinstance(value, Mapping):
        if key == "loss_scale" and isinstance(value, str | int | float):
            return scale_settings(value)
        raise RecipeError.explain(f"Recipe setting {key} = {value!r} is invalid.", why="it must be a table.")
    fields = {f.name: f for f in dataclasses.fields(before)}
    _check_keys(value, set(fields), where=where, text=text, table=key)
    numbers = {name: float(number) if fields[name].type == "float" else number for name, number in value.items()}
    return dataclasses.replace(before, **numbers)


def _check_keys(data: Mapping[str, Any], allowed: set[str], *, where: str, text: str, table: str = "") -> None:
    for key in data:
        if key not in allowed:
            what = f"{table}.{key}" if table else key
            raise RecipeError.explain(
                f"Recipe file '{where}'{_line_of(what, text)} has an unknown setting '{what}'.",
                why=f"known settings are {', '.join(sorted(allowed))}.",
                fix="correct the name; docs/recipes.md describes the settings.",
            )


def _line_of(message: str, text: str) -> str:
    """Return ` line 12` for the setting that a message is about, or nothing if it is not found."""
    match = re.match(r"(?:Recipe setting |Loss scale setting |The fixed-point setting )?([\w.]+(?:\".*\")?)", message)
    key = match[1].rpartition(".")[2] if match and '"' not in match[1] else ""
    quoted = re.search(r'(?:overrides|activation_sites)\."(.*?)"', message)
    pattern = re.escape(json.dumps(quoted[1])) if quoted else rf"\b{re.escape(key)}"
    for number, line in enumerate(text.splitlines(), start=1):
        if (key or quoted) and re.match(rf"\s*(?:[\w.]+\.)?{pattern}\s*=", line):
            return f" line {number}"
    return ""


def _table(name: str, values: Mapping[str, Any]) -> list[str]:
    return ["", f"[{name}]", *(f"{_key(key)} = {_toml(value)}" for key, value in values.items())]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    raise RecipeError.explain(f"A recipe cannot hold {value!r}.", why="TOML has no way to write it.")
