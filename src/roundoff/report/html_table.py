"""A table on a page: columns can be sorted, rows can be filtered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from roundoff.report.markup import Html, join_html, tag

Mark = Literal["bad", "failed", "waiting"]
"""How a row is highlighted; its cells say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
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


def table(columns: Sequence[Column], rows: Sequence[TableRow], *, noun: str) -> Html:
    """Return the table under its filter box; `noun` is what its rows are, in the plural."""
    head = tag("thead", tag("tr", *map(_heading, columns)))
    body = tag("tbody", *(_row(columns, row) for row in rows))
    box = tag("input", type="search", autocomplete="off", spellcheck="false")
    count = tag("output", f"{len(rows)} {noun}", data_noun=noun)
    filtering = tag("p", tag("label", "Filter ", box), " ", count, class_="filter", hidden=True)
    scrolling = tag("div", tag("table", head, body), class_="scrolling", tabindex=0, role="region", aria_label=noun)
    return tag("div", join_html(filtering, scrolling), class_="filtered")


def _heading(column: Column) -> Html:
    button = tag("button", column.name, type="button")
    return tag("th", button, scope="col", class_="number" if column.is_number else None)


def _row(columns: Sequence[Column], row: TableRow) -> Html:
    cells = (_cell(column, cell) for column, cell in zip(columns, row.cells, strict=True))
    return tag("tr", *cells, class_=row.mark, id=row.anchor, tabindex=-1 if row.anchor else None)


def _cell(column: Column, cell: Cell) -> Html:
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
