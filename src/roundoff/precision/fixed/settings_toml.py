"""Fixed-point settings as TOML text: what is written reads back as the same value."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from roundoff.errors import RecipeError
from roundoff.precision.fixed.settings import FixedPointSettings


def settings_to_toml(settings: FixedPointSettings) -> str:
    """Write every field of every setting, one table for each kind of tensor.

    >>> print(settings_to_toml(FixedPointSettings()).partition("[bias]")[0])
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
    return "\n".join(_lines(settings.to_dict(), ())).lstrip("\n") + "\n"


def settings_from_toml(text: str) -> FixedPointSettings:
    """Read settings from TOML; what is left out has its default.

    Raises:
        RecipeError: the text is not TOML, or a name in it is unknown.
    """
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError.explain("The fixed-point settings are not TOML.", why=f"{error}.") from error
    return FixedPointSettings.from_dict(plain)


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if plain or not table:
        yield from ("", f"[{'.'.join(path)}]")
    for key, value in plain.items():
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _lines(
                value, (*path, key if key.isidentifier() and key.isascii() else json.dumps(key, ensure_ascii=False))
            )
