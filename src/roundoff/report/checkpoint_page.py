"""Two compared checkpoints as a page."""

from __future__ import annotations

from roundoff.compare.checkpoints import SUSPICIOUS, CheckpointComparison
from roundoff.report.checkpoint_text import HEADER, WORDS, checkpoint_rows, checkpoint_sentence
from roundoff.report.markup import tag
from roundoff.report.page import facts, page, section
from roundoff.report.table import Cell, Column, Mark, TableRow, table


def checkpoint_page(found: CheckpointComparison) -> str:
    """Return a page with the verdict, and a table of every tensor of the two."""
    bad = {kind.value for kind in SUSPICIOUS} | {"only reference", "only candidate"}
    columns = [Column(name=name, is_number=name not in WORDS) for name in HEADER]
    rows = [
        TableRow(cells=[_cell(name, text) for name, text in zip(HEADER, row, strict=True)], mark=_mark(row, bad))
        for row in checkpoint_rows(found)
    ]
    about = {
        "reference": f"{found.reference} ({found.formats[0]})",
        "candidate": f"{found.candidate} ({found.formats[1]})",
    }
    return page(
        "Two checkpoints",
        tag("p", checkpoint_sentence(found), class_="verdict"),
        facts(about),
        section("Tensors", table(columns, rows, noun="tensors")),
    )


def _mark(row: tuple[str, ...], bad: set[str]) -> Mark | None:
    return "bad" if row[0] in bad else None


def _cell(name: str, text: str) -> Cell:
    if name in WORDS or not text:
        return Cell(shown=text, value=text or None)
    return Cell(shown=text, value=float(text))
