"""A comparison of two runs: one sentence, then on request a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from roundoff.compare.divergence import Row, Unpaired
from roundoff.diagnose.numbers import told_apart
from roundoff.runs import Finding, JsonValue, Severity

if TYPE_CHECKING:
    from roundoff.compare.runs import RunComparison

WIDTH = 100
MOST_UNPAIRED = 6


def runs_text(comparison: RunComparison, finding: Finding | None, *, width: int = WIDTH) -> str:
    """Say in one sentence where the candidate begins to differ, or by how much it does where formats explain it."""
    if finding is None:
        lines = _agreement(comparison, width)
    elif finding.severity is Severity.NOTE:
        lines = [*_agreement(comparison, width), *_note_lines(finding, width)]
    else:
        lines = _finding_lines(finding, width)
    return "\n".join([*lines, *_unpaired_lines(comparison.unpaired, width)])


def rows_table(rows: Sequence[Row], *, width: int = WIDTH) -> str:
    """Lay the rows out as a table, one tensor a line; equal ones are counted, not listed."""
    differing = [row for row in rows if not row.is_equal]
    lines = [f"{'step':>4} {'phase':9} {'relative':>9} {'inherited':>9} {'excess':>8}  tensor"]
    for row in differing:
        place = " / ".join(part for part in (row.site, row.op, row.parameter) if part)
        numbers = f"{row.step:>4} {row.phase:9} {row.relative:>9.2g} {row.inherited:>9.2g} {row.excess:>8.2g}"
        lines.append(f"{numbers}  {place}"[:width])
    return "\n".join([*lines, f"{len(rows) - len(differing)} more are equal bit for bit"])


def csv_rows(rows: Sequence[Row]) -> list[Sequence[object]]:
    """Return the names of the columns, then every row, equal ones included."""
    names = [field.name for field in fields(Row)]
    return [names, *([getattr(row, name) for name in names] for row in rows)]


def runs_object(comparison: RunComparison, finding: Finding | None) -> dict[str, JsonValue]:
    """Return the comparison as JSON."""
    return {
        "finding": None if finding is None else finding.to_object(),
        "identical": comparison.is_identical,
        "steps": list(comparison.steps),
        "ranks": list(comparison.ranks),
        "num_tensors": len(comparison.rows),
        "num_equal": sum(row.is_equal for row in comparison.rows),
        "only_in_one": [asdict(op) for op in comparison.unpaired],
        "rows": [asdict(row) for row in comparison.rows if not row.is_equal],
    }


def _finding_lines(finding: Finding, width: int) -> list[str]:
    title = finding.title[:1].upper() + finding.title[1:] if finding.op is None else finding.title
    head = _wrapped(title, "", "  ", width)
    if finding.source:
        fits = len(head[-1]) + len(finding.source) + 3 <= width
        head = (
            [*head[:-1], f"{head[-1]:<{width - len(finding.source)}}{finding.source}"]
            if fits
            else [*head, f"  {finding.source}"]
        )
    lines = [line for part in finding.why.split("\n") for line in _wrapped(f"{part}.", "  ", "  ", width)]
    told = [line for line in _related_lines(finding) if line not in finding.why]
    also = [
        line for text in told[:2] for line in _wrapped(f"the runs differ in {text}", "  also   ", "         ", width)
    ]
    return [*head, *lines, *_wrapped(finding.fix, "  fix    ", "         ", width), *also]


def _related_lines(finding: Finding) -> list[str]:
    """Return what the runs were told differently, without the kind behind it."""
    lines = [line for related in finding.related for line in related.why.splitlines()]
    return [line.rpartition(" (")[0] or line for line in lines]


def _note_lines(finding: Finding, width: int) -> list[str]:
    """Tell the settings that differ without having made a difference, in two lines at most."""
    return _wrapped(f"note   the runs differ in {finding.why.splitlines()[0]}", "  ", "         ", width)[:2]


def _agreement(comparison: RunComparison, width: int) -> list[str]:
    if not comparison.rows:
        return ["No step was recorded in both runs, so that no op can be compared."]
    where = f"{len(comparison.rows)} tensors of {_steps(comparison)}"
    if comparison.is_identical:
        return [f"The runs are identical bit for bit: {where}."]
    lines = _wrapped(f"Nothing differs beyond what the formats explain: {where}.", "", "  ", width)
    largest = comparison.largest
    if largest is not None:
        text = f"largest difference of a forward pass: {largest.relative:.2g} of the norm, {_formats(largest)}"
        lines += _wrapped(f"{text}, at {largest.site} / {largest.op}.", "  ", "  ", width)
    losses = comparison.losses
    if losses is not None and losses.points:
        last = losses.points[-1]
        reference, candidate = told_apart(last.reference, last.candidate)
        lines.append(f"  loss of step {last.step}: {reference} in the reference, {candidate} here.")
    return lines


def _unpaired_lines(unpaired: Sequence[Unpaired], width: int) -> list[str]:
    """Say which ops only one side has; sites that have the same of them are told together."""
    by_site: dict[tuple[str, str, str], list[str]] = {}
    for op in unpaired:
        by_site.setdefault((op.side, op.phase, op.site), []).append(op.op)
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (side, phase, site), ops in by_site.items():
        alike.setdefault((side, phase, tuple(dict.fromkeys(ops))), []).append(site)
    lines: list[str] = []
    for (side, phase, names), sites in list(alike.items())[:MOST_UNPAIRED]:
        text = f"only in the {side}, {phase}: {', '.join(names)} of {_few(sites)}"
        lines += _wrapped(text, "  ", "    ", width)[:3]
    more = len(alike) - MOST_UNPAIRED
    return [*lines, f"  and {more} more kinds of sites; --json lists them all"] if more > 0 else lines


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, ... {names[-1]} ({len(names)} sites)"


def _steps(comparison: RunComparison) -> str:
    steps = ", ".join(str(step) for step in comparison.steps[:8])
    return f"step {steps}" if len(comparison.steps) == 1 else f"steps {steps}"


def _formats(row: Row) -> str:
    if row.reference_dtype == row.candidate_dtype:
        return row.reference_dtype
    return f"{row.reference_dtype} against {row.candidate_dtype}"


def _wrapped(text: str, first: str, rest: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
