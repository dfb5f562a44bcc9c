"""`roundoff formats`: which numbers each format can represent, and how it represents a given one."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from roundoff.cli.console.options import json_option
from roundoff.errors import UsageError

if TYPE_CHECKING:
    from roundoff.formats import Format, RoundingEffect

Row = tuple[str, ...]

_WHAT_TO_SAY = {
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
        click.echo(_json_of_formats(formats) if as_json else _table(_format_rows(formats)))
        return
    effects = [(fmt.name, effect_of(value, fmt)) for fmt in formats]
    click.echo(_json_of_effects(effects) if as_json else _table(_effect_rows(effects)))


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
    header = ("format", "bits", "largest", "smallest normal", "smallest subnormal", "eps", "overflow")
    overflow = {"saturate": "saturates", "infinity": "infinity", "nan": "NaN"}
    return [
        header,
        *(
            (
                fmt.name,
                f"{fmt.num_bits:g}",
                f"{fmt.largest:.6g}",
                f"{fmt.smallest_normal:.4g}",
                f"{fmt.smallest_subnormal:.4g}",
                f"{fmt.eps:.4g}",
                overflow[fmt.overflow],
            )
            for fmt in formats
        ),
    ]


def _effect_rows(effects: Sequence[tuple[str, RoundingEffect]]) -> list[Row]:
    header = ("format", "value", "relative error", "what happens")
    return [
        header,
        *(
            (
                name,
                f"{effect.value:.9g}",
                "-" if effect.outcome == "exact" else f"{effect.relative_error:.2g}",
                _WHAT_TO_SAY.get(effect.outcome, effect.outcome),
            )
            for name, effect in effects
        ),
    ]


def _table(rows: Sequence[Row]) -> str:
    """Lay out rows under their header; all columns but the first and the last are numbers."""
    from roundoff.report.text_table import text_table

    return text_table(rows, left=(rows[0][0], rows[0][-1]), ruled=_is_terminal(), width=sys.maxsize)


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _json_of_formats(formats: Sequence[Format]) -> str:
    return json.dumps(
        [
            {
                "format": fmt.name,
                "num_bits": fmt.num_bits,
                "largest": fmt.largest,
                "smallest_normal": fmt.smallest_normal,
                "smallest_subnormal": fmt.smallest_subnormal,
                "eps": fmt.eps,
                "overflow": fmt.overflow,
            }
            for fmt in formats
        ],
        indent=1,
        allow_nan=False,
    )


def _json_of_effects(effects: Sequence[tuple[str, RoundingEffect]]) -> str:
    """JSON has no infinity and no NaN: they are the texts "inf", "-inf" and "nan"."""
    return json.dumps(
        [
            {
                "format": name,
                "value": _json_number(effect.value),
                "relative_error": _json_number(effect.relative_error),
                "outcome": effect.outcome,
            }
            for name, effect in effects
        ],
        indent=1,
        allow_nan=False,
    )


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
