"""A comparison of two runs: one sentence, then on request a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from roundoff.compare.runs.divergence import ComparedTensor, UnpairedOp
from roundoff.diagnose.wording import format_distinct, format_of
from roundoff.report.html_table import Cell, Column, TableRow, table
from roundoff.report.loss_curve import loss_curve
from roundoff.report.markup import Html, joined, tag
from roundoff.report.page import facts, page, section
from roundoff.runs import Finding, JsonValue, Severity
from roundoff.words import wrap

if TYPE_CHECKING:
    from roundoff.compare.runs.run_comparison import RunComparison
    from roundoff.compare.settings.setting_difference import SettingDifference
    from roundoff.runs import Finding


WIDTH = 100
MAX_UNPAIRED = 6


def runs_text(comparison: RunComparison, finding: Finding | None, *, width: int = WIDTH) -> str:
    """Say in one sentence where the candidate begins to differ, or by how much it does where formats explain it."""
    if finding is None:
        lines = _agreement(comparison, width)
    elif finding.severity is Severity.NOTE:
        lines = [*_agreement(comparison, width), *_note_lines(finding, width)]
    else:
        lines = _finding_lines(finding, width)
    return "\n".join([*lines, *_unpaired_lines(comparison.unpaired, width)])


def rows_table(rows: Sequence[ComparedTensor], *, width: int = WIDTH) -> str:
    """Lay the rows out as a table, one tensor a line; equal ones are counted, not listed."""
    differing = [row for row in rows if not row.is_equal]
    lines = [f"{'step':>4} {'phase':9} {'relative':>9} {'inherited':>9} {'excess':>8}  tensor"]
    for row in differing:
        place = " / ".join(part for part in (row.site, row.op, row.parameter) if part)
        numbers = f"{row.step:>4} {row.phase:9} {row.relative:>9.2g} {row.inherited:>9.2g} {row.excess:>8.2g}"
        lines.append(f"{numbers}  {place}"[:width])
    return "\n".join([*lines, f"{len(rows) - len(differing)} more are equal bit for bit"])


def csv_rows(rows: Sequence[ComparedTensor]) -> list[Sequence[object]]:
    """Return the names of the columns, then every row, equal ones included."""
    names = [field.name for field in fields(ComparedTensor)]
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
    head = wrap(title, first="", rest="  ", width=width)
    if finding.source:
        fits = len(head[-1]) + len(finding.source) + 3 <= width
        head = (
            [*head[:-1], f"{head[-1]:<{width - len(finding.source)}}{finding.source}"]
            if fits
            else [*head, f"  {finding.source}"]
        )
    lines = [line for part in finding.why.split("\n") for line in wrap(f"{part}.", first="  ", rest="  ", width=width)]
    told = [line for line in _related_lines(finding) if line not in finding.why]
    also = [
        line
        for text in told[:2]
        for line in wrap(f"the runs differ in {text}", first="  also   ", rest="         ", width=width)
    ]
    return [*head, *lines, *wrap(finding.fix, first="  fix    ", rest="         ", width=width), *also]


def _related_lines(finding: Finding) -> list[str]:
    """Return what the runs were told differently, without the kind behind it."""
    lines = [line for related in finding.related for line in related.why.splitlines()]
    return [line.rpartition(" (")[0] or line for line in lines]


def _note_lines(finding: Finding, width: int) -> list[str]:
    """Tell the settings that differ without having made a difference, in two lines at most."""
    return wrap(f"note   the runs differ in {finding.why.splitlines()[0]}", first="  ", rest="         ", width=width)[
        :2
    ]


def _agreement(comparison: RunComparison, width: int) -> list[str]:
    if not comparison.rows:
        return ["No step was recorded in both runs, so that no op can be compared."]
    where = f"{len(comparison.rows)} tensors of {_steps(comparison)}"
    if comparison.is_identical:
        return [f"The runs are identical bit for bit: {where}."]
    lines = wrap(f"Nothing differs beyond what the formats explain: {where}.", first="", rest="  ", width=width)
    largest = comparison.largest
    if largest is not None:
        text = f"largest difference of a forward pass: {largest.relative:.2g} of the norm, {_formats(largest)}"
        lines += wrap(f"{text}, at {largest.site} / {largest.op}.", first="  ", rest="  ", width=width)
    losses = comparison.losses
    if losses is not None and losses.points:
        last = losses.points[-1]
        reference, candidate = format_distinct(last.reference, last.candidate)
        lines.append(f"  loss of step {last.step}: {reference} in the reference, {candidate} here.")
    return lines


def _unpaired_lines(unpaired: Sequence[UnpairedOp], width: int) -> list[str]:
    """Say which ops only one side has; sites that have the same of them are told together."""
    by_site: dict[tuple[str, str, str], list[str]] = {}
    for op in unpaired:
        by_site.setdefault((op.side, op.phase, op.site), []).append(op.op)
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (side, phase, site), ops in by_site.items():
        alike.setdefault((side, phase, tuple(dict.fromkeys(ops))), []).append(site)
    lines: list[str] = []
    for (side, phase, names), sites in list(alike.items())[:MAX_UNPAIRED]:
        text = f"only in the {side}, {phase}: {', '.join(names)} of {_few(sites)}"
        lines += wrap(text, first="  ", rest="    ", width=width)[:3]
    more = len(alike) - MAX_UNPAIRED
    return [*lines, f"  and {more} more kinds of sites; --json lists them all"] if more > 0 else lines


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, ... {names[-1]} ({len(names)} sites)"


def _steps(comparison: RunComparison) -> str:
    steps = ", ".join(str(step) for step in comparison.steps[:8])
    return f"step {steps}" if len(comparison.steps) == 1 else f"steps {steps}"


def _formats(row: ComparedTensor) -> str:
    if row.reference_dtype == row.candidate_dtype:
        return row.reference_dtype
    return f"{row.reference_dtype} against {row.candidate_dtype}"


# == A comparison of two runs as a page: the verdict, the losses, the differences along the steps, and every
# == tensor.

_WIDTH, _HEIGHT = 960, 160
_FLOOR = 1e-8
"""Smaller relative differences are drawn on the floor."""
MAX_TENSOR_ROWS = 2000
DIVERGENCE = "first-divergence"
"""The anchor of the first tensor that the finding is about."""


def runs_page(comparison: RunComparison, finding: Finding | None, *, reference: str, candidate: str) -> str:
    """Return the page; differing tensors come first in the table, and the page says how many were left out."""
    return page(
        f"{candidate} against {reference}",
        tag("pre", runs_text(comparison, finding)),
        comparison_facts(comparison, reference=reference, candidate=candidate),
        _losses(comparison),
        section("Differences along the steps", _strip(comparison.rows, finding)),
        *([section("Settings that differ", settings_table(comparison.settings))] if comparison.settings else []),
        section("Tensors", tensors_table(comparison.rows, finding)),
    )


def comparison_facts(comparison: RunComparison, *, reference: str, candidate: str) -> Html:
    """Return what was compared, and how much of it is equal."""
    num_equal = sum(row.is_equal for row in comparison.rows)
    return facts(
        {
            "reference": reference,
            "candidate": candidate,
            "steps compared op by op": ", ".join(map(str, comparison.steps)) or "none",
            "tensors lined up": f"{len(comparison.rows)}, of which {num_equal} are equal bit for bit",
            "ops that only one run has": str(len(comparison.unpaired)),
        }
    )


def _losses(comparison: RunComparison) -> Html:
    losses = comparison.losses
    if losses is None or not losses.points:
        return joined()
    columns = [Column(name="run"), Column(name="loss")]
    rows = [
        TableRow(cells=(Cell(shown="reference"), Cell(shown=loss_curve([p.reference for p in losses.points])))),
        TableRow(cells=(Cell(shown="candidate"), Cell(shown=loss_curve([p.candidate for p in losses.points])))),
    ]
    return section("Losses", table(columns, rows, noun="runs"))


def _strip(rows: Sequence[ComparedTensor], finding: Finding | None) -> Html:
    """Draw the relative difference of every result from the first op to the last, on a logarithmic scale."""
    drawn = [row for row in rows if not math.isnan(row.relative)]
    if not drawn:
        return tag("p", "No step was recorded in both runs.")
    marks = [_bar(place, len(drawn), row, is_origin=is_origin(row, finding)) for place, row in enumerate(drawn)]
    largest = max(row.relative for row in drawn)
    picture = tag(
        "svg",
        *marks,
        role="img",
        aria_label=f"relative differences of {len(drawn)} tensors, the largest {largest:.2g}",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        class_="strip",
    )
    caption = "The relative difference of each result, from 1e-8 to 1, in the order in which the reference ran."
    return tag("figure", picture, tag("figcaption", caption), class_="along")


def _bar(place: int, num: int, row: ComparedTensor, *, is_origin: bool) -> Html:
    height = _HEIGHT * _share(row.relative)
    width = max(1.0, _WIDTH / num)
    words = f"step {row.step}, {row.phase}: {row.site} / {row.op}: {row.relative:.2g}, inherited {row.inherited:.2g}"
    bar = tag(
        "rect",
        x=f"{_WIDTH * place / num:.1f}",
        y=f"{0 if is_origin else _HEIGHT - height:.1f}",
        width=f"{2 * width if is_origin else width:.2f}",
        height=f"{_HEIGHT if is_origin else height:.1f}",
    )
    return tag("g", tag("title", words), bar, class_="origin" if is_origin else row.phase)


def _share(relative: float) -> float:
    if relative <= _FLOOR:
        return 0.0 if not relative else 0.02
    return min(1.0, 1 - math.log10(min(relative, 1.0)) / math.log10(_FLOOR)) if math.isfinite(relative) else 1.0


def settings_table(settings: Sequence[SettingDifference]) -> Html:
    """Return what the runs were told differently, the two side by side."""
    names = ("setting", "kind", "reference", "candidate")
    rows = [
        TableRow(
            cells=[
                Cell(shown=text, value=text)
                for text in (setting.what, str(setting.kind), str(setting.reference), str(setting.candidate))
            ]
        )
        for setting in settings
    ]
    return table([Column(name=name) for name in names], rows, noun="settings")


def tensors_table(rows: Sequence[ComparedTensor], finding: Finding | None, *, most: int = MAX_TENSOR_ROWS) -> Html:
    """Return the tensors, differing ones first, the one that the finding is about marked; and how many are left out."""
    differing = [row for row in rows if not row.is_equal]
    shown = [*differing, *(row for row in rows if row.is_equal)][:most]
    columns = [
        Column(name="step", is_number=True),
        Column(name="phase"),
        Column(name="site"),
        Column(name="op"),
        Column(name="shape"),
        Column(name="relative", is_number=True),
        Column(name="inherited", is_number=True),
        Column(name="excess", is_number=True),
        Column(name="reference absmax", is_number=True),
        Column(name="candidate absmax", is_number=True),
        Column(name="formats"),
    ]
    origin = next((row for row in rows if is_origin(row, finding)), None)
    if origin is not None and origin not in shown:
        shown = [origin, *shown[:-1]]
    made = [
        TableRow(
            cells=_cells(row),
            mark="bad" if is_origin(row, finding) else None,
            anchor=DIVERGENCE if row is origin else None,
        )
        for row in shown
    ]
    left_out = len(rows) - len(shown)
    note = [tag("p", f"{left_out} more tensors are left out; roundoff compare --csv writes them all.")]
    return joined(table(columns, made, noun="tensors"), *(note if left_out else []))


def _cells(row: ComparedTensor) -> list[Cell]:
    place = f"{row.op} {row.parameter}" if row.parameter else row.op
    ours, theirs = format_of(row.reference_dtype), format_of(row.candidate_dtype)
    formats = ours if ours == theirs else f"{ours}, {theirs}"
    return [
        Cell(shown=str(row.step), value=float(row.step)),
        Cell(shown=row.phase, value=row.phase),
        Cell(shown=row.site, value=row.site),
        Cell(shown=place, value=place),
        Cell(shown=row.shape, value=row.shape),
        *(Cell(shown="" if row.is_equal else f"{x:.2g}", value=x) for x in (row.relative, row.inherited, row.excess)),
        *(
            Cell(shown="" if math.isnan(x) else f"{x:.4g}", value=x)
            for x in (row.reference_absmax, row.candidate_absmax)
        ),
        Cell(shown=formats, value=formats),
    ]


def is_origin(row: ComparedTensor, finding: Finding | None) -> bool:
    """Say whether this is the tensor that the finding is about."""
    if finding is None or finding.step is None:
        return False
    return (row.step, row.phase, row.site, row.op) == (finding.step, finding.phase, finding.site, finding.op)
