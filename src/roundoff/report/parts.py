"""What an answer consists of: a list of parts, which becomes the text of a console or the HTML of a page."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from roundoff.report.html_table import Column, TableRow, table
from roundoff.report.loss_curve import loss_curve
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.page import section
from roundoff.report.sparkline import sparkline
from roundoff.report.text_table import text_table
from roundoff.words import wrap

WIDTH = 100
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Sentence:
    """The verdict, which comes first."""

    text: str
    source: str | None = None
    """The line of code that it is about, shown at the right."""


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
    """What happens on a console to a text that is too long for its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePicture:
    """A curve with a text next to it: bars on a console, a picture on a page."""

    label: str
    values: Sequence[float]
    text: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under named columns; on a page they can be sorted and filtered."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[TableRow]
    noun: str
    """What the rows are, in the plural."""
    note: str = ""
    """What the rows leave out."""
    page_rows: Sequence[TableRow] | None = None
    """What a page shows instead, if it is to show other rows than a console."""
    page_note: str = ""


Part = Sentence | Note | Facts | CurvePicture | Table


def to_text(parts: Sequence[Part], *, width: int = WIDTH) -> str:
    """Lay out parts for a console."""
    return "\n".join(line for part in parts for line in _lines(part, width))


def to_html(parts: Sequence[Part]) -> Html:
    """Lay out parts for a page."""
    return join_html(*map(_element, parts))


def _lines(part: Part, width: int) -> list[str]:
    match part:
        case Sentence():
            return _sentence_lines(part, width)
        case Note(text):
            return wrap(text, width=width, first=_INDENT, rest=_INDENT)
        case Facts():
            return list(_fact_lines(part, width))
        case CurvePicture(label=label, values=values, text=text, low=low, high=high):
            return [f"{_INDENT}{label:<11}{sparkline(values, low=low, high=high)}  {text}"]
        case Table():
            return _table_lines(part)


def _sentence_lines(sentence: Sentence, width: int) -> list[str]:
    lines = wrap(sentence.text, width=width, rest=_INDENT)
    if not sentence.source:
        return lines
    if len(lines[-1]) + len(sentence.source) + 3 > width:
        return [*lines, f"{_INDENT}{sentence.source}"]
    return [*lines[:-1], f"{lines[-1]:<{width - len(sentence.source)}}{sentence.source}"]


def _fact_lines(facts: Facts, width: int) -> Iterator[str]:
    rest = " " * (len(_INDENT) + facts.label_width)
    for label, text in facts.pairs:
        first = f"{_INDENT}{label:<{facts.label_width}}"
        if facts.overflow == "wrap":
            yield from wrap(text, width=width, first=first, rest=rest)
        else:
            line = f"{first}{text}".rstrip()
            yield line if len(line) <= width or facts.overflow == "keep" else f"{line[: width - 1]}…"


def _table_lines(part: Table) -> list[str]:
    shown = [place for place, column in enumerate(part.columns) if column.is_on_console]
    header = tuple(part.columns[place].name for place in shown)
    rows = [tuple(row.cells[place].shown for place in shown) for row in part.rows]
    words = [column.name for column in part.columns if not column.is_number]
    text = text_table([header, *rows], left=words, ruled=sys.stdout.isatty())
    return ["", *text.splitlines(), *([part.note] if part.note else [])]


def _element(part: Part) -> Html:
    match part:
        case Sentence(text, source):
            return tag("p", text, *([" ", tag("code", source)] if source else []), class_="verdict")
        case Note(text):
            return tag("p", text)
        case Facts(pairs):
            return tag("dl", *(tag("div", tag("dt", label), tag("dd", text)) for label, text in pairs), class_="facts")
        case CurvePicture(label=label, values=values, text=text):
            return section(label.capitalize(), tag("p", text), loss_curve(values))
        case Table():
            return section(part.title, table_html(part))


def table_html(part: Table) -> Html:
    """Return a table without its heading."""
    rows, note = (part.rows, part.note) if part.page_rows is None else (part.page_rows, part.page_note)
    return join_html(table(part.columns, rows, noun=part.noun), *([tag("p", note)] if note else []))
