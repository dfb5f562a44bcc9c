"""Rows that differ only in their seed, as one line: the mean, the spread, and how many went non-finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from roundoff.experiments.sweep.sweep_rows import SweepRow, is_nonfinite
from roundoff.report.parts import Cell, Mark, TableColumn, TableRow
from roundoff.report.spread_chart import MeanAndRange
from roundoff.words import size_text

SEED_AXIS = "seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedGroup:
    """The trainings of one combination of labels, with every seed that was trained."""

    labels: Mapping[str, str]
    rows: Sequence[SweepRow]

    @property
    def top1(self) -> list[float]:
        """The accuracy of every seed that was trained to its end; NaN of the weights leaves what guessing gives."""
        return [row.top1 for row in self.rows if row.top1 is not None]

    @property
    def num_nonfinite(self) -> int:
        """The number of seeds whose loss was NaN or infinite."""
        return sum(is_nonfinite(row) for row in self.rows)

    @property
    def spread(self) -> MeanAndRange | None:
        """Mean, lowest and highest accuracy; None where no training reached its end."""
        found = self.top1
        return MeanAndRange(mean=fmean(found), low=min(found), high=max(found)) if found else None


def has_several_seeds(rows: Sequence[SweepRow]) -> bool:
    """Whether some rows differ only in their seed."""
    return any(len(group.rows) > 1 for group in group_by_labels(rows))


def group_by_labels(rows: Sequence[SweepRow]) -> list[SeedGroup]:
    """Return one group for each combination of labels other than the seed, in the order of the rows."""
    groups: dict[tuple[tuple[str, str], ...], list[SweepRow]] = {}
    for row in rows:
        labels = tuple((axis, label) for axis, label in row.labels.items() if axis != SEED_AXIS)
        groups.setdefault(labels, []).append(row)
    return [SeedGroup(labels=dict(labels), rows=members) for labels, members in groups.items()]


def seed_columns(groups: Sequence[SeedGroup], axes: Sequence[str]) -> list[TableColumn]:
    """Return the columns of the groups' table: the axes other than the seed, then numbers."""
    names = ["top-1", "lowest", "highest", "seeds"]
    names += ["not finite"] if any(group.num_nonfinite for group in groups) else []
    names += ["skipped"] if any(row.skipped for group in groups for row in group.rows) else []
    names += ["saved"] if any(group.rows[0].saved_activation_bytes is not None for group in groups) else []
    labels = [TableColumn(name=axis) for axis in axes if axis != SEED_AXIS]
    return [*labels, *(TableColumn(name=name, is_number=True) for name in [*names, "time"])]


def seed_row(group: SeedGroup, columns: Sequence[TableColumn]) -> TableRow:
    """Return the line of a group, for console and page."""
    cells = _cells(group)
    labels = {axis: Cell(shown=label, value=label) for axis, label in group.labels.items()}
    shown = [labels.get(each.name) or cells.get(each.name) or Cell(shown="-") for each in columns]
    has_failed = any(row.failure is not None for row in group.rows)
    mark: Mark | None = "failed" if has_failed else "bad" if group.num_nonfinite else None
    return TableRow(cells=shown, mark=mark)


def _cells(group: SeedGroup) -> dict[str, Cell]:
    spread, rows = group.spread, group.rows
    saved = rows[0].saved_activation_bytes
    skipped = fmean(row.skipped for row in rows)
    seconds = fmean(row.seconds for row in rows)
    accuracies = {} if spread is None else {"top-1": spread.mean, "lowest": spread.low, "highest": spread.high}
    return {
        **{name: Cell(shown=f"{value:.3f}", value=value) for name, value in accuracies.items()},
        "seeds": Cell(shown=_count(len(group.top1), len(rows)), value=len(group.top1)),
        "not finite": Cell(shown=f"{group.num_nonfinite} of {len(rows)}", value=group.num_nonfinite),
        "skipped": Cell(shown=f"{skipped:.3g}", value=skipped),
        "saved": Cell(shown="-" if saved is None else size_text(saved), value=saved),
        "time": Cell(shown=f"{seconds:.1f} s", value=seconds),
    }


def _count(num_trained: int, num_seeds: int) -> str:
    return str(num_seeds) if num_trained == num_seeds else f"{num_trained} of {num_seeds}"


def seeds_table(rows: Sequence[SweepRow], axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the header and a line of texts for each combination of labels other than the seed."""
    groups = group_by_labels(rows)
    columns = seed_columns(groups, axes)
    lines = [tuple(str(cell.shown) for cell in seed_row(group, columns).cells) for group in groups]
    return [tuple(column.name for column in columns), *lines]


def spreads_by_axes(rows: Sequence[SweepRow], axes: Sequence[str]) -> dict[str, dict[str, MeanAndRange]]:
    """Return the spread for each label of the first axis and of the second, where there are just these two."""
    others = [axis for axis in axes if axis != SEED_AXIS]
    lines: dict[str, dict[str, MeanAndRange]] = {}
    for group in group_by_labels(rows) if len(others) == 2 else []:
        if group.spread is not None and all(axis in group.labels for axis in others):
            lines.setdefault(group.labels[others[0]], {})[group.labels[others[1]]] = group.spread
    return lines
