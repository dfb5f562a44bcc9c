"""The answer of `roundoff compare` about two loss curves."""

from __future__ import annotations

import csv
from pathlib import Path

import click

from roundoff.cli.compared import Asked
from roundoff.compare.curves import CurveComparison, compare_curves, read_curve
from roundoff.errors import CompareError
from roundoff.report.curves_page import curves_object, curves_page
from roundoff.report.curves_text import CURVE_COLUMNS, curve_rows, curves_table, curves_text
from roundoff.runs import to_json


def answer(reference: str, candidate: str, asked: Asked) -> bool:
    """Print where the candidate's curve leaves the reference's, and return whether it does."""
    comparison = compare_curves(
        read_curve(reference, pattern=asked.pattern, column=asked.column),
        read_curve(candidate, pattern=asked.pattern, column=asked.column),
    )
    if asked.csv is not None:
        _write_csv(asked.csv, comparison)
    if asked.html is not None:
        _write(asked.html, curves_page(comparison))
    if asked.as_json:
        click.echo(to_json(curves_object(comparison), indent=1))
    else:
        click.echo(curves_text(comparison))
        if asked.table:
            click.echo(curves_table(comparison))
    return comparison.differs


def _write_csv(path: Path, comparison: CurveComparison) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(CURVE_COLUMNS)
            writer.writerows(curve_rows(comparison))
    except OSError as error:
        raise _cannot_write(path, error) from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> CompareError:
    return CompareError.explain(f"'{path}' cannot be written.", why=f"{error.strerror}.")
