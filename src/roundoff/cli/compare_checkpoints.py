"""`roundoff compare a.pth b.ckpt`: which parameters differ, and what looks wrong about them."""

from __future__ import annotations

import sys

import click

from roundoff.cli.compare import CompareOptions, write_csv, write_output
from roundoff.cli.console.screen import waiting

TABLE_COLUMNS = ("kind", "reference", "candidate", "shape", "paired by", "relative", "note")
"""What fits on a screen; the file has all columns."""


def answer(reference: str, candidate: str, asked: CompareOptions) -> bool:
    """Print what differs between two checkpoints; True if anything does that their formats do not explain."""
    from roundoff.checkpoints.pair.name_map import read_name_map
    from roundoff.checkpoints.read.dispatch import read_checkpoint
    from roundoff.compare.checkpoints.checkpoint_comparison import compare_checkpoints
    from roundoff.report.comparisons.compared_checkpoints import (
        HEADER,
        checkpoint_page,
        checkpoint_rows,
        checkpoint_sentence,
        checkpoint_text,
    )
    from roundoff.runs import to_json

    name_map = read_name_map(asked.map_file) if asked.map_file else None
    with waiting("comparing"), read_checkpoint(reference) as ours, read_checkpoint(candidate) as theirs:
        found = compare_checkpoints(ours, theirs, name_map=name_map)
    rows = checkpoint_rows(found)
    if asked.csv:
        write_csv(asked.csv, [HEADER, *rows])
    if asked.html:
        write_output(asked.html, checkpoint_page(found))
    if asked.as_json:
        click.echo(to_json({"sentence": checkpoint_sentence(found), **found.to_object()}, indent=1))
    else:
        click.echo(checkpoint_text(found))
        click.echo(f"\n{_table(HEADER, rows)}" if asked.table else "", nl=asked.table)
    return found.differs


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    from roundoff.report.comparisons.compared_checkpoints import WORDS
    from roundoff.report.text_table import text_table

    places = [header.index(name) for name in TABLE_COLUMNS]
    shown = [(kind, ours, "same" if ours == theirs else theirs, *rest) for kind, ours, theirs, *rest in rows]
    lines = [tuple(row[place] for place in places) for row in (header, *shown)]
    return text_table(lines, left=WORDS, ruled=sys.stdout.isatty())
