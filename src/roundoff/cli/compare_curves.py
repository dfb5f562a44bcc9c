"""The answer of `roundoff compare` about two loss curves."""

from __future__ import annotations

import click

from roundoff.cli.compare import CompareOptions, write_csv, write_output
from roundoff.compare.curves.curve_comparison import compare_curves, read_curve
from roundoff.report.comparisons.compared_curves import (
    CURVE_COLUMNS,
    curve_rows,
    curves_object,
    curves_page,
    curves_table,
    curves_text,
)
from roundoff.runs import to_json


def answer(reference: str, candidate: str, asked: CompareOptions) -> bool:
    """Print where the candidate's curve leaves the reference's, and return whether it does."""
    comparison = compare_curves(
        read_curve(reference, pattern=asked.pattern, column=asked.column),
        read_curve(candidate, pattern=asked.pattern, column=asked.column),
    )
    if asked.csv is not None:
        write_csv(asked.csv, [CURVE_COLUMNS, *curve_rows(comparison)])
    if asked.html is not None:
        write_output(asked.html, curves_page(comparison))
    if asked.as_json:
        click.echo(to_json(curves_object(comparison), indent=1))
    else:
        click.echo(curves_text(comparison))
        if asked.table:
            click.echo(curves_table(comparison))
    return comparison.differs
