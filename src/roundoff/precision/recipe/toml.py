"""Reads and writes recipes as TOML; errors name the line, and what is written reads back as the same value."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from roundoff.errors import RecipeError
from roundoff.files import read_bytes
from roundoff.precision.recipe.fixed_point_settings import FixedPointSettings
from roundoff.precision.recipe.recipe import OperandSettings, Recipe, ScaleSettings, scale_settings

_TABLES = {"loss_scale": ScaleSettings, "operands": OperandSettings}
_FREE_TABLES = ("fixed", "activation_sites", "overrides")


_MAX_BYTES = 2**20
"""A longer recipe file is refused."""


def to_toml(recipe: Recipe) -> str:
    """Write every setting of a recipe.

    The tables `operands` and `fixed` are left out where the recipe does not use them and they have their defaults.
    """
    plain: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if field.name in _TABLES:
            unused = field.name == "operands" and recipe.compute != "operands" and value == OperandSettings()
            tables |= {} if unused else {field.name: dataclasses.asdict(value)}
        elif field.name in _FREE_TABLES:
            entries = value.changes() if isinstance(value, FixedPointSettings) else value
            tables |= {field.name: entries} if entries else {}
        else:
            plain[field.name] = value
    try:
        return tomli_w.dumps(plain | tables)
    except TypeError as error:
        raise RecipeError.explain(f"Recipe '{recipe.name}' cannot be written as TOML.", why=f"{error}.") from error


def read_recipe(path: Path, *, named: Callable[[str], Recipe]) -> Recipe:
    """Read a recipe file; `base = "O2"` starts from a named recipe instead of the defaults.

    Raises:
        RecipeError: the file cannot be read, or a setting is invalid; the message names file and line.
    """
    try:
        text = read_bytes(path.resolve(), max_bytes=_MAX_BYTES).decode()
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
    except (ValueError, RecursionError) as error:
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
    return dataclasses.replace(
        before, **{name: _check_value(f"{key}.{name}", given, str(fields[name].type)) for name, given in value.items()}
    )


def _check_value(name: str, value: Any, kind: str) -> Any:
    """Return a value of a setting if it has the type of its field; whole numbers are floats, too."""
    try:
        if kind == "float" and type(value) in (int, float):
            return float(value)
    except OverflowError:
        pass
    if kind not in ("float", "int", "bool", "str") or type(value).__name__ == kind:
        return value
    raise RecipeError.explain(f"Recipe setting {name} = {value!r:.80} is invalid.", why=f"allowed: a {kind}.")


def _check_keys(data: Mapping[str, Any], allowed: set[str], *, where: str, text: str, table: str = "") -> None:
    for key in data:
        if key not in allowed:
            what = f"{table}.{key}" if table else key
            raise RecipeError.explain(
                f"Recipe file '{where}'{_line_of(what, text)} has an unknown setting '{what}'.",
                why=f"known settings are {', '.join(sorted(allowed))}.",
                fix="correct the name; `roundoff docs recipes` describes the settings.",
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


def settings_to_toml(settings: FixedPointSettings) -> str:
    """Return the settings as TOML, with every field of every kind of tensor; it reads back as the same value.

    >>> print(settings_to_toml(FixedPointSettings()).partition("[bias]")[0])
    norms = "float"
    <BLANKLINE>
    [weight]
    bits = 8
    method = "auto"
    range = "max"
    float_scale = false
    rounding = "nearest"
    granularity = "tensor"
    scale = "none"
    compat = "none"
    percentile = 99.9
    """
    return tomli_w.dumps(settings.to_dict())


def settings_from_toml(text: str) -> FixedPointSettings:
    """Read settings from TOML; missing fields have their defaults.

    Raises:
        RecipeError: the text is not TOML, a name is unknown, or a value is invalid.
    """
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError.explain("The fixed-point settings are not TOML.", why=f"{error}.") from error
    return FixedPointSettings.from_dict(plain)
