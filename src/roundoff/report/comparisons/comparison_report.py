"""What every comparison can show, whatever was compared: a text, a table, CSV, JSON and a page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from roundoff.console import PLAIN, Paint
from roundoff.report.markup import Html
from roundoff.report.page import facts, page
from roundoff.report.parts import WIDTH, Cell, Part, TablePart, to_html, to_text
from roundoff.runs import JsonValue


class ComparisonReport(ABC):
    """A comparison of a reference with a candidate, ready to be shown."""

    comparison: Any
    """What was found; `differs` says whether by more than formats and noise explain."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The heading of the page."""

    @property
    def is_answered(self) -> bool:
        """Whether enough was compared to say that nothing differs."""
        return True

    @property
    def differs(self) -> bool:
        """Whether the candidate differs by more than formats and noise explain."""
        return bool(self.comparison.differs)

    @abstractmethod
    def parts(self) -> list[Part]:
        """Return the answer: the verdict first, then what else fits on a screen."""

    @abstractmethod
    def tables(self) -> list[TablePart]:
        """Return everything that was compared."""

    @abstractmethod
    def to_object(self) -> Mapping[str, JsonValue]:
        """Return the comparison as a JSON object."""

    def csv_rows(self) -> list[Sequence[object]]:
        """Return the first table with exact numbers, its header first."""
        first = self.tables()[0]
        header: Sequence[object] = [column.name for column in first.columns]
        rows = [[cell.shown if cell.value is None else cell.value for cell in row.cells] for row in first.rows]
        return [header, *rows]

    def about(self) -> Mapping[str, str]:
        """Return what was compared, for the page."""
        return {}

    def pictures(self) -> Sequence[Html]:
        """Return what only a page can show."""
        return ()

    def text(self, *, table: bool = False, width: int = WIDTH, paint: Paint = PLAIN) -> str:
        """Return what a console shows, with the tables if they are wanted."""
        return to_text([*self.parts(), *(self.tables() if table else [])], width=width, paint=paint)

    def page(self) -> str:
        """Return an HTML page with the same answer and the tables."""
        about = [facts(self.about())] if self.about() else []
        return page(self.title, to_html(self.parts()), *about, *self.pictures(), to_html(self.tables()))


def pair_cells(header: Sequence[str], row: Sequence[str], *, words: Collection[str]) -> list[Cell]:
    """Return the cells of a pair of tensors; the candidate's name is `same` where it is the reference's.

    Columns among `words` are sorted as text, the others as numbers.
    """
    cells = []
    for name, text in zip(header, row, strict=True):
        is_same = name == "candidate" and text and text == row[header.index("reference")]
        value = text or None if name in words or not text else float(text)
        cells.append(Cell(shown="same" if is_same else text, value=value))
    return cells
