"""A sweep in one sentence: how many rows, how many went wrong, and which is best."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.experiments.row import Row


def summary_of(rows: Sequence[Row], *, num_planned: int) -> str:
    """Say what the rows came to; one that crashed or went non-finite is counted and never the best."""
    if not rows:
        return f"None of the {num_planned} rows is there yet."
    counted = f"{len(rows)} of {num_planned} rows so far" if len(rows) < num_planned else _count(len(rows), "row")
    failed = sum(row.failure is not None for row in rows)
    nonfinite = sum(is_nonfinite(row) for row in rows)
    troubles = [f"{nonfinite} went non-finite" if nonfinite else "", f"{failed} failed" if failed else ""]
    trouble = ", ".join(filter(None, troubles)) or "none went non-finite"
    return f"{counted}: {trouble}{_best(rows)}."


def is_nonfinite(row: Row) -> bool:
    """Whether a loss was NaN or infinite, be it of a step or of the evaluation."""
    return row.first_nonfinite_step is not None or row.ended_nonfinite


def _best(rows: Sequence[Row]) -> str:
    good = [row for row in rows if row.top1 is not None and not is_nonfinite(row)]
    if not good:
        return "; no row is good"
    most = max(row.top1 or 0.0 for row in good)
    best = [row for row in good if row.top1 == most]
    others = f", level with {_count(len(best) - 1, 'other')}" if len(best) > 1 else ""
    return f"; best is '{best[0].name}' with top-1 {most:.3f}{others}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
