"""A sweep as a page: its summary, a table of its rows with their loss curves, and their common settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from roundoff.report.loss_curve import loss_curve
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.page import facts, page, section
from roundoff.report.parts import Cell, Mark, TableColumn, TableRow, table
from roundoff.report.spread_chart import MeanAndRange, spread_chart


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPageRow:
    """One training as its row shows it."""

    cells: Sequence[Cell]
    """One for each column of the page."""
    outcome: str
    """Its outcome, in a word or two."""
    mark: Mark | None = None
    losses: Sequence[float] = ()
    """The loss of every step, where it is known."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings that differ from those of other rows."""
    recipe: str | None = None
    """The whole recipe, where it has no name."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSeeds:
    """The rows with seeds put together: their table, and their spread by two axes if there are no others."""

    columns: Sequence[TableColumn]
    rows: Sequence[TableRow]
    spreads: Mapping[str, Mapping[str, MeanAndRange]]
    axis: str
    """The second axis, which goes from left to right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPage:
    """Everything the page of a sweep shows; nothing of it is computed there."""

    title: str
    description: str
    summary: str
    columns: Sequence[TableColumn]
    rows: Sequence[SweepPageRow]
    common: Mapping[str, str]
    """Settings of all rows, other than defaults."""
    defaults: Mapping[str, str]
    """Settings that have their default in all rows."""
    over_seeds: OverSeeds | None = None


def sweep_page(sweep: SweepPage) -> str:
    """Return the page as HTML."""
    return page(
        sweep.title,
        tag("p", sweep.summary, class_="verdict"),
        *([tag("p", sweep.description)] if sweep.description else []),
        *([_over_seeds(sweep.over_seeds)] if sweep.over_seeds is not None else []),
        _rows(sweep),
        _settings(sweep),
    )


def _over_seeds(over: OverSeeds) -> Html:
    chart = [spread_chart(over.spreads, axis=over.axis, name="top-1")] if over.spreads else []
    return section("Over all seeds", *chart, table(over.columns, over.rows, noun="combinations"))


def _rows(sweep: SweepPage) -> Html:
    has_curves = any(row.losses for row in sweep.rows)
    columns = [
        *sweep.columns,
        TableColumn(name="outcome"),
        *([TableColumn(name="loss")] if has_curves else []),
        TableColumn(name="note"),
    ]
    return table(columns, [_row(row, has_curves=has_curves) for row in sweep.rows], noun="rows")


def _row(row: SweepPageRow, *, has_curves: bool) -> TableRow:
    curve = [_curve(row.losses)] if has_curves else []
    note = Cell(shown=join_html(row.note, _details(row)), value=row.note)
    outcome = Cell(shown=tag("span", row.outcome, class_="outcome"), value=row.outcome)
    return TableRow(cells=[*row.cells, outcome, *curve, note], mark=row.mark)


def _curve(losses: Sequence[float]) -> Cell:
    """Return the cell of a curve, which is sorted by where it ended."""
    return Cell(shown=loss_curve(losses), value=losses[-1]) if losses else Cell(shown="")


def _details(row: SweepPageRow) -> Html:
    """Return what tells the row from others, folded: its labels say it in short."""
    if not row.settings and row.recipe is None:
        return Html()
    recipe = [tag("pre", row.recipe)] if row.recipe is not None else []
    return tag("details", tag("summary", "settings"), facts(row.settings), *recipe)


def _settings(sweep: SweepPage) -> Html:
    """Return what is common to all rows: what was set openly, the defaults folded."""
    common = facts(sweep.common) if sweep.common else tag("p", "Only the defaults.")
    defaults = tag(
        "details", tag("summary", f"{len(sweep.defaults)} settings at their defaults"), facts(sweep.defaults)
    )
    return section("Settings common to all rows", common, defaults)
