"""`roundoff compare DIR DIR`: the first of the saved tensors that differs."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import click

from roundoff.cli.compared import Asked
from roundoff.errors import CompareError

TABLE_COLUMNS = ("verdict", "reference", "candidate", "shape", "relative", "ulp", "max abs", "at", "channel")
"""What fits on a screen; the file has all columns."""


def answer(reference: str, candidate: str, asked: Asked) -> bool:
    """Print which saved tensor differs first; True if one does by more than formats explain, or has no partner."""
    from roundoff.checkpoints.pairing_map import read_name_map
    from roundoff.compare.tensors import compare_tensors
    from roundoff.report.tensors_page import tensors_object, tensors_page
    from roundoff.report.tensors_text import HEADER, tensors_rows, tensors_text
    from roundoff.runs import to_json

    name_map = read_name_map(asked.map_file) if asked.map_file else None
    found = compare_tensors(reference, candidate, name_map=name_map)
    try:
        if asked.csv:
            _write_csv(asked.csv, [HEADER, *tensors_rows(found, exact=True)])
        if asked.html:
            asked.html.write_text(tensors_page(found), encoding="utf-8")
    except OSError as error:
        raise CompareError.explain(f"'{error.filename}' cannot be written.", why=f"{error.strerror}.") from error
    if asked.as_json:
        click.echo(to_json(tensors_object(found), indent=1))
    else:
        click.echo(tensors_text(found))
        if asked.table:
            click.echo(f"\n{_table([HEADER, *tensors_rows(found)])}")
    return found.differs


def _write_csv(path: Path, rows: list[tuple[str, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def _table(rows: list[tuple[str, ...]]) -> str:
    from roundoff.experiments.text_table import text_table
    from roundoff.report.tensors_text import WORDS

    places = [rows[0].index(name) for name in TABLE_COLUMNS]
    shown = [rows[0], *((row[0], row[1], "same" if row[1] == row[2] else row[2], *row[3:]) for row in rows[1:])]
    return text_table([tuple(row[place] for place in places) for row in shown], left=WORDS, ruled=sys.stdout.isatty())
