"""`roundoff formats`: which numbers each format can represent, and how it represents a given one."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import json_option
from roundoff.cli.terminal import echo
from roundoff.errors import UsageError
from roundoff.words import text_table

if TYPE_CHECKING:
    from roundoff.formats import Format, RoundingEffect
    from roundoff.runs import JsonValue

Row = tuple[str, ...]

_FORMAT_COLUMNS = {
    "num_bits": ("bits", "g"),
    "largest": ("largest", ".6g"),
    "smallest_normal": ("smallest normal", ".4g"),
    "smallest_subnormal": ("smallest subnormal", ".4g"),
    "eps": ("eps", ".4g"),
}
"""The title of each number of a format, and how it is printed."""
_OVERFLOWS = {"saturate": "saturates", "infinity": "infinity", "nan": "NaN"}
_OUTCOMES = {
    "subnormal": "rounded, as a subnormal with fewer bits",
    "overflow to infinity": "overflows to infinity",
    "overflow to nan": "overflows to NaN",
    "underflow to zero": "underflows to zero",
}


@click.command(
    "formats",
    # A negative number looks like an option.
    context_settings={"ignore_unknown_options": True},
    epilog="Example: roundoff formats 70000 --format fp16 --format e5m12",
)
@click.argument("number", required=False)
@click.option(
    "--format",
    "names",
    metavar="NAME",
    multiple=True,
    help="Only this format, such as e4m3, e5m10 or q3.5. Repeatable.",
)
@json_option("Print one JSON array.")
def formats_command(number: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """Show which numbers a format can represent, or how each format represents NUMBER (rounded to nearest).

    In a block format (mx...), NUMBER is a block of its own.
    """
    from roundoff.formats import effect_of, format_named, known_formats

    value = None if number is None else _number_in(number)
    formats = [format_named(name) for name in names] or list(known_formats())
    if value is None:
        objects, rows = _format_objects(formats), _format_rows(formats)
    else:
        effects = [(fmt.name, effect_of(value, fmt)) for fmt in formats]
        objects, rows = _effect_objects(effects), _effect_rows(effects)
    if as_json:
        echo_json("formats", objects, indent=1)
    else:
        echo(_table(rows))


def _number_in(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError.explain(
            f"'{text}' is not a number.",
            why="`roundoff formats NUMBER` shows how each format represents it.",
            fix=f"write it like 70000, -1.5, 1e-9, inf or nan; for one format: roundoff formats --format {text}",
        ) from None


def _format_rows(formats: Sequence[Format]) -> list[Row]:
    rows: list[Row] = [("format", *(title for title, _ in _FORMAT_COLUMNS.values()), "overflow")]
    for fmt in formats:
        numbers = (f"{getattr(fmt, key):{form}}" for key, (_, form) in _FORMAT_COLUMNS.items())
        rows.append((fmt.name, *numbers, _OVERFLOWS[fmt.overflow]))
    return rows


def _format_objects(formats: Sequence[Format]) -> list[dict[str, JsonValue]]:
    return [
        {"format": fmt.name, **{key: getattr(fmt, key) for key in _FORMAT_COLUMNS}, "overflow": fmt.overflow}
        for fmt in formats
    ]


def _effect_rows(effects: Sequence[tuple[str, RoundingEffect]]) -> list[Row]:
    rows = []
    for name, effect in effects:
        error = "-" if effect.outcome == "exact" else f"{effect.relative_error:.2g}"
        rows.append((name, f"{effect.value:.9g}", error, _OUTCOMES.get(effect.outcome, effect.outcome)))
    return [("format", "value", "relative error", "what happens"), *rows]


def _effect_objects(effects: Sequence[tuple[str, RoundingEffect]]) -> list[dict[str, JsonValue]]:
    return [
        {
            "format": name,
            "value": _json_number(effect.value),
            "relative_error": _json_number(effect.relative_error),
            "outcome": effect.outcome,
        }
        for name, effect in effects
    ]


def _json_number(value: float) -> float | str:
    """JSON has no infinity and no NaN: they are the texts "inf", "-inf" and "nan"."""
    return value if math.isfinite(value) else str(value)


def _table(rows: Sequence[Row]) -> str:
    """Lay out rows under their header; all columns but the first and the last are numbers."""
    return text_table(rows, left=(rows[0][0], rows[0][-1]), ruled=_is_terminal(), width=sys.maxsize)


def _is_terminal() -> bool:
    return sys.stdout.isatty()
