"""What an answer consists of: a list of parts, which becomes the text of a console or the HTML of a page."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from roundoff.console import PLAIN, Paint, Style
from roundoff.report.loss_curve import loss_curve, sparkline
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.page import section
from roundoff.words import text_table, wrap

Mark = Literal["bad", "failed", "waiting"]
"""How a row is highlighted; its cells say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column: its name, and whether it holds numbers, which are aligned at the right."""

    name: str
    is_number: bool = False
    is_on_console: bool = True
    """Whether the table on a console, which is narrow, has the column too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a cell shows, and what it is sorted by."""

    shown: str
    """Text, or `Html`."""
    value: float | str | None = None
    """A cell without a value, or with NaN, comes last whichever way the column is sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """The cells of a row, one for each column."""

    cells: Sequence[Cell]
    mark: Mark | None = None
    anchor: str | None = None
    """What links lead to the row by."""


def table(columns: Sequence[TableColumn], rows: Sequence[TableRow], *, noun: str) -> Html:
    """Return the table under its filter box; `noun` is what its rows are, in the plural."""
    head = tag("thead", tag("tr", *map(_heading, columns)))
    body = tag("tbody", *(_row(columns, row) for row in rows))
    box = tag("input", type="search", autocomplete="off", spellcheck="false")
    count = tag("output", f"{len(rows)} {noun}", data_noun=noun)
    filtering = tag("p", tag("label", "Filter ", box), " ", count, class_="filter", hidden=True)
    scrolling = tag("div", tag("table", head, body), class_="scrolling", tabindex=0, role="region", aria_label=noun)
    return tag("div", join_html(filtering, scrolling), class_="filtered")


def _heading(column: TableColumn) -> Html:
    button = tag("button", column.name, type="button")
    return tag("th", button, scope="col", class_="number" if column.is_number else None)


def _row(columns: Sequence[TableColumn], row: TableRow) -> Html:
    cells = (_cell(column, cell) for column, cell in zip(columns, row.cells, strict=True))
    return tag("tr", *cells, class_=row.mark, id=row.anchor, tabindex=-1 if row.anchor else None)


def _cell(column: TableColumn, cell: Cell) -> Html:
    value = None if isinstance(cell.value, float) and math.isnan(cell.value) else cell.value
    return tag("td", cell.shown, class_="number" if column.is_number else None, data_value=value)


def percent(share: float) -> str:
    """Write a share as a cell does; 0 is empty, so that the others stand out.

    >>> percent(0.0), percent(0.5), percent(1.0), percent(1e-5)
    ('', '50 %', '100 %', '<0.1 %')
    """
    if share <= 0:
        return ""
    if share >= 0.995:
        return "100 %"
    return f"{100 * share:.2g} %" if share >= 0.001 else "<0.1 %"


WIDTH = 100
_INDENT = "  "
_TYPED = ":  "
"""Comes between words and something to type."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """The verdict, which comes first."""

    text: str
    source: str | None = None
    """The line of code that it is about, shown at the right."""
    style: Style = "marked"
    """How a terminal with colours shows it."""
    file: Path | None = None
    """Where the file of `source` is, if that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    """Lines of a source file, one of them marked."""

    lines: Sequence[str]
    from_line: int
    marked: int


@dataclass(frozen=True, slots=True)
class Heading:
    """A title for the parts after it."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A further sentence, indented on a console."""

    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels, each with a text next to it."""

    pairs: Sequence[tuple[str, str]]
    label_width: int = 7
    overflow: Literal["wrap", "cut", "keep"] = "wrap"
    """What happens on a console to a text that is too long for its line.

    wrap: it is continued on the next one; but something to type, after `:  `, gets a line of its own, to be copied.
    """
    is_apart: bool = False
    """Whether a console shows an empty line before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePicture:
    """A curve with a text next to it: bars on a console, a picture on a page."""

    label: str
    values: Sequence[float]
    text: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """Rows under named columns; on a page they can be sorted and filtered."""

    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[TableRow]
    noun: str
    """What the rows are, in the plural."""
    note: str = ""
    """What the rows leave out."""
    page_rows: Sequence[TableRow] | None = None
    """What a page shows instead, if it is to show other rows than a console."""
    page_note: str = ""


Part = Sentence | CodeBlock | Heading | Note | Facts | CurvePicture | TablePart


def to_text(parts: Sequence[Part], *, width: int = WIDTH, paint: Paint = PLAIN) -> str:
    """Lay out parts for a console."""
    return "\n".join(line for part in parts for line in _lines(part, width, paint))


def to_html(parts: Sequence[Part]) -> Html:
    """Lay out parts for a page."""
    return join_html(*map(_element, parts))


def _lines(part: Part, width: int, paint: Paint) -> list[str]:
    match part:
        case Sentence():
            return _sentence_lines(part, width, paint)
        case CodeBlock():
            lines = [f"{_INDENT}{line}"[:width].rstrip() for line in code_lines(part)]
            return [paint(line, "marked" if line.startswith(f"{_INDENT}>") else "faint") for line in lines]
        case Heading(text):
            return ["", paint(text, "marked")]
        case Note(text):
            return [paint(line) for line in wrap(text, width=width, first=_INDENT, rest=_INDENT)]
        case Facts():
            return [*[""] * part.is_apart, *_fact_lines(part, width, paint)]
        case CurvePicture(label=label, values=values, text=text, low=low, high=high):
            return [paint(f"{_INDENT}{label:<11}{sparkline(values, low=low, high=high)}  {text}")]
        case TablePart():
            return [paint(line) for line in _table_lines(part)]


def code_lines(code: CodeBlock) -> list[str]:
    """Return lines of code with their numbers, without the indentation that all of them share.

    >>> code_lines(CodeBlock(lines=["    for x in data:", "        y = f(x)"], from_line=9, marked=10))
    ['   9 | for x in data:', '> 10 |     y = f(x)']
    """
    lines = textwrap.dedent("\n".join(code.lines)).split("\n")
    numbers = range(code.from_line, code.from_line + len(lines))
    digits = len(str(numbers[-1]))
    return [
        f"{'>' if number == code.marked else ' '} {number:>{digits}} | {line}".rstrip()
        for number, line in zip(numbers, lines, strict=True)
    ]


def _sentence_lines(sentence: Sentence, width: int, paint: Paint) -> list[str]:
    lines = wrap(sentence.text, width=width, rest=_INDENT)
    painted = [paint(line, sentence.style) for line in lines]
    if not sentence.source:
        return painted
    number = sentence.source.rpartition(":")[2]
    source = paint(sentence.source, link=sentence.file, line=int(number) if number.isdecimal() else 1)
    gap = width - len(lines[-1]) - len(sentence.source)
    return [*painted, f"{_INDENT}{source}"] if gap < 3 else [*painted[:-1], f"{painted[-1]}{' ' * gap}{source}"]


def _fact_lines(facts: Facts, width: int, paint: Paint) -> Iterator[str]:
    indent = len(_INDENT) + facts.label_width
    for label, text in facts.pairs:
        for place, (words, typed) in enumerate(_fact_pieces(text, width - indent, facts.overflow)):
            start = f"{_INDENT}{'' if place else label:<{facts.label_width}}"
            yield f"{paint(start, 'label')}{paint(words)}{paint(typed, 'code')}".rstrip()


def _fact_pieces(text: str, width: int, overflow: Literal["wrap", "cut", "keep"]) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text, each as words and what is to be typed after them; that is never broken."""
    for line in text.splitlines() if overflow == "wrap" else [text]:
        words, gap, typed = line.partition(_TYPED)
        if len(line) <= width or overflow == "keep":
            yield words + gap, typed
        elif overflow == "cut":
            yield f"{line[: width - 1]}…", ""
        else:
            yield from ((each, "") for each in wrap(f"{words}:" if gap else line, width=width))
            if gap:
                yield _INDENT, typed


def _table_lines(part: TablePart) -> list[str]:
    shown = [place for place, column in enumerate(part.columns) if column.is_on_console]
    header = tuple(part.columns[place].name for place in shown)
    rows = [tuple(row.cells[place].shown for place in shown) for row in part.rows]
    words = [column.name for column in part.columns if not column.is_number]
    text = text_table([header, *rows], left=words, ruled=sys.stdout.isatty())
    return ["", *text.splitlines(), *([part.note] if part.note else [])]


def _element(part: Part) -> Html:
    match part:
        case Sentence(text=text, source=source):
            return tag("p", text, *([" ", tag("code", source)] if source else []), class_="verdict")
        case CodeBlock():
            return tag("pre", "\n".join(code_lines(part)), class_="code")
        case Heading(text):
            return tag("h2", text)
        case Note(text):
            return tag("p", text)
        case Facts(pairs):
            return tag("dl", *(tag("div", tag("dt", label), tag("dd", text)) for label, text in pairs), class_="facts")
        case CurvePicture(label=label, values=values, text=text):
            return section(label.capitalize(), tag("p", text), loss_curve(values))
        case TablePart():
            return section(part.title, table_html(part))


def table_html(part: TablePart) -> Html:
    """Return a table without its heading."""
    rows, note = (part.rows, part.note) if part.page_rows is None else (part.page_rows, part.page_note)
    return join_html(table(part.columns, rows, noun=part.noun), *([tag("p", note)] if note else []))
