"""`roundoff compare a.pth b.ckpt`: which parameters differ, and what looks wrong about them."""

from __future__ import annotations

import sys

import click

from roundoff.cli.compared import Asked, write_csv, write_output
from roundoff.cli.screen import waiting

TABLE_COLUMNS = ("kind", "reference", "candidate", "shape", "paired by", "relative", "note")
"""What fits on a screen; the file has all columns."""


def answer(reference: str, candidate: str, asked: Asked) -> bool:
    """Print what differs between two checkpoints; True if anything does that their formats do not explain."""
    from roundoff.checkpoints.pairing_map import read_name_map
    from roundoff.checkpoints.read import read_checkpoint
    from roundoff.compare.checkpoints import compare_checkpoints
    from roundoff.report.checkpoint_page import checkpoint_page
    from roundoff.report.checkpoint_text import HEADER, checkpoint_rows, checkpoint_sentence, checkpoint_text
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
    from roundoff.experiments.text_table import text_table
    from roundoff.report.checkpoint_text import WORDS

    places = [header.index(name) for name in TABLE_COLUMNS]
    shown = [(kind, ours, "same" if ours == theirs else theirs, *rest) for kind, ours, theirs, *rest in rows]
    lines = [tuple(row[place] for place in places) for row in (header, *shown)]
    return text_table(lines, left=WORDS, ruled=sys.stdout.isatty())
