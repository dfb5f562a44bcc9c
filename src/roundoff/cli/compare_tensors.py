"""`roundoff compare DIR DIR`: the first of the saved tensors that differs."""

from __future__ import annotations

import sys

import click

from roundoff.cli.compare import CompareOptions, write_csv, write_output

TABLE_COLUMNS = ("verdict", "reference", "candidate", "shape", "relative", "ulp", "max abs", "at", "channel")
"""What fits on a screen; the file has all columns."""


def answer(reference: str, candidate: str, asked: CompareOptions) -> bool:
    """Print which saved tensor differs first; True if one does by more than formats explain, or has no partner."""
    from roundoff.checkpoints.pair.name_map import read_name_map
    from roundoff.compare.tensors.tensor_comparison import compare_tensors
    from roundoff.report.comparisons.compared_tensors import (
        HEADER,
        tensors_object,
        tensors_page,
        tensors_rows,
        tensors_text,
    )
    from roundoff.runs import to_json

    name_map = read_name_map(asked.map_file) if asked.map_file else None
    found = compare_tensors(reference, candidate, name_map=name_map)
    if asked.csv:
        write_csv(asked.csv, [HEADER, *tensors_rows(found, exact=True)])
    if asked.html:
        write_output(asked.html, tensors_page(found))
    if asked.as_json:
        click.echo(to_json(tensors_object(found), indent=1))
    else:
        click.echo(tensors_text(found))
        if asked.table:
            click.echo(f"\n{_table([HEADER, *tensors_rows(found)])}")
    return found.differs


def _table(rows: list[tuple[str, ...]]) -> str:
    from roundoff.report.comparisons.compared_tensors import WORDS
    from roundoff.report.text_table import text_table

    places = [rows[0].index(name) for name in TABLE_COLUMNS]
    shown = [rows[0], *((row[0], row[1], "same" if row[1] == row[2] else row[2], *row[3:]) for row in rows[1:])]
    return text_table([tuple(row[place] for place in places) for row in shown], left=WORDS, ruled=sys.stdout.isatty())
