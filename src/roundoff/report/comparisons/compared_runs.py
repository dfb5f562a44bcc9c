"""Two compared runs: where the candidate first differs, the losses, the differences along the steps, every tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from roundoff.compare.runs.divergence import ComparedTensor, UnpairedOp
from roundoff.diagnose.wording import format_distinct, format_of
from roundoff.report.comparisons.comparison_report import ComparisonReport
from roundoff.report.html_table import Cell, Column, Mark, TableRow, table
from roundoff.report.loss_curve import loss_curve
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.page import section
from roundoff.report.parts import Facts, Note, Part, Sentence, Table
from roundoff.runs import Finding, JsonValue, Severity
from roundoff.words import join_names

if TYPE_CHECKING:
    from roundoff.compare.runs.run_comparison import RunComparison
    from roundoff.compare.settings.setting_difference import SettingDifference

MAX_UNPAIRED = 6
MAX_TENSOR_ROWS = 2000
DIVERGENCE = "first-divergence"
"""The anchor of the first tensor that the finding is about."""
_WIDTH, _HEIGHT = 960, 160
_FLOOR = 1e-8
"""Smaller relative differences are drawn on the floor."""


@dataclass(frozen=True, kw_only=True)
class ComparedRuns(ComparisonReport):
    """A comparison of two runs."""

    comparison: RunComparison
    finding: Finding | None
    """The first difference that formats do not explain, or settings that differ."""
    reference: str
    candidate: str

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"{self.candidate} against {self.reference}"

    @property
    def differs(self) -> bool:
        """Whether the runs differ by more than formats explain."""
        return self.finding is not None and self.finding.severity is not Severity.NOTE

    def parts(self) -> list[Part]:
        """Say where the candidate first differs, or by how much it does where formats explain it."""
        return run_parts(self.comparison, self.finding)

    def tables(self) -> list[Table]:
        """Return the tensors, and the settings that differ."""
        found = [tensors_table(self.comparison.rows, self.finding)]
        return [*found, settings_table(self.comparison.settings)] if self.comparison.settings else found

    def csv_rows(self) -> list[Sequence[object]]:
        """Return every tensor, equal ones included, the header first."""
        names = [field.name for field in fields(ComparedTensor)]
        return [names, *([getattr(row, name) for name in names] for row in self.comparison.rows)]

    def about(self) -> dict[str, str]:
        """Return what was compared, and how much of it is equal."""
        return comparison_facts(self.comparison, reference=self.reference, candidate=self.candidate)

    def pictures(self) -> list[Html]:
        """Draw the losses, and the differences along the steps."""
        strip = section("Differences along the steps", _strip(self.comparison.rows, self.finding))
        return [_losses(self.comparison), strip]

    def to_object(self) -> dict[str, JsonValue]:
        """Return the comparison as a JSON object."""
        comparison = self.comparison
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "finding": None if self.finding is None else self.finding.to_object(),
            "identical": comparison.is_identical,
            "steps": list(comparison.steps),
            "ranks": list(comparison.ranks),
            "num_tensors": len(comparison.rows),
            "num_equal": sum(row.is_equal for row in comparison.rows),
            "only_in_one": [asdict(op) for op in comparison.unpaired],
            "rows": [asdict(row) for row in comparison.rows if not row.is_equal],
        }


def run_parts(comparison: RunComparison, finding: Finding | None) -> list[Part]:
    """Say where the candidate first differs, or by how much it does where formats explain it."""
    if finding is None:
        parts = _agreement(comparison)
    elif finding.severity is Severity.NOTE:
        parts = [*_agreement(comparison), Facts([("note", f"the runs differ in {finding.why.splitlines()[0]}")])]
    else:
        parts = _finding_parts(finding)
    return [*parts, *map(Note, _describe_unpaired(comparison.unpaired))]


def _finding_parts(finding: Finding) -> list[Part]:
    title = finding.title[:1].upper() + finding.title[1:] if finding.op is None else finding.title
    settings = [line for line in _related_settings(finding) if line not in finding.why]
    also = [("also", f"the runs differ in {setting}") for setting in settings[:2]]
    return [
        Sentence(title, source=finding.source),
        *(Note(f"{paragraph}.") for paragraph in finding.why.split("\n")),
        Facts([("fix", finding.fix), *also]),
    ]


def _related_settings(finding: Finding) -> list[str]:
    """Return the settings that differ, without their kind in parentheses."""
    lines = [line for related in finding.related for line in related.why.splitlines()]
    return [line.rpartition(" (")[0] or line for line in lines]


def _agreement(comparison: RunComparison) -> list[Part]:
    if not comparison.rows:
        return [Sentence("No step was recorded in both runs, so no op can be compared.")]
    where = f"{len(comparison.rows)} tensors of {_steps(comparison)}"
    if comparison.is_identical:
        return [Sentence(f"The runs are identical bit for bit: {where}.")]
    parts: list[Part] = [Sentence(f"Nothing differs beyond what the formats explain: {where}.")]
    largest = comparison.largest
    if largest is not None:
        text = f"largest difference of a forward pass: {largest.relative:.2g} of the norm, {_formats(largest)}"
        parts.append(Note(f"{text}, at {largest.site} / {largest.op}."))
    losses = comparison.losses
    if losses is not None and losses.points:
        last = losses.points[-1]
        reference, candidate = format_distinct(last.reference, last.candidate)
        parts.append(Note(f"loss of step {last.step}: {reference} in the reference, {candidate} in the candidate."))
    return parts


def _describe_unpaired(unpaired: Sequence[UnpairedOp]) -> list[str]:
    """Say which ops only one side has; sites with the same ops share a line."""
    by_site: dict[tuple[str, str, str], list[str]] = {}
    for op in unpaired:
        by_site.setdefault((op.side, op.phase, op.site), []).append(op.op)
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (side, phase, site), ops in by_site.items():
        alike.setdefault((side, phase, tuple(dict.fromkeys(ops))), []).append(site)
    lines = [
        f"only in the {side}, {phase}: {join_names(names, at_most=12)} of {_few(sites)}"
        for (side, phase, names), sites in list(alike.items())[:MAX_UNPAIRED]
    ]
    more = len(alike) - MAX_UNPAIRED
    return [*lines, f"and {more} more kinds of sites; --json lists them all"] if more > 0 else lines


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, ... {names[-1]} ({len(names)} sites)"


def _steps(comparison: RunComparison) -> str:
    steps = ", ".join(str(step) for step in comparison.steps[:8])
    return f"step {steps}" if len(comparison.steps) == 1 else f"steps {steps}"


def _formats(row: ComparedTensor) -> str:
    if row.reference_dtype == row.candidate_dtype:
        return row.reference_dtype
    return f"{row.reference_dtype} against {row.candidate_dtype}"


def comparison_facts(comparison: RunComparison, *, reference: str, candidate: str) -> dict[str, str]:
    """Return what was compared, and how much of it is equal."""
    num_equal = sum(row.is_equal for row in comparison.rows)
    return {
        "reference": reference,
        "candidate": candidate,
        "steps compared op by op": ", ".join(map(str, comparison.steps)) or "none",
        "tensors compared": f"{len(comparison.rows)}, of which {num_equal} are equal bit for bit",
        "ops in only one run": str(len(comparison.unpaired)),
    }


def _losses(comparison: RunComparison) -> Html:
    losses = comparison.losses
    if losses is None or not losses.points:
        return join_html()
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


def settings_table(settings: Sequence[SettingDifference]) -> Table:
    """Return the settings that differ."""
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
    columns = [Column(name=name) for name in names]
    return Table(title="Settings that differ", columns=columns, rows=rows, noun="settings")


_COLUMNS = (
    Column(name="step", is_number=True),
    Column(name="phase"),
    Column(name="site"),
    Column(name="op"),
    Column(name="shape", is_on_console=False),
    Column(name="relative", is_number=True),
    Column(name="inherited", is_number=True),
    Column(name="excess", is_number=True),
    Column(name="reference absmax", is_number=True, is_on_console=False),
    Column(name="candidate absmax", is_number=True, is_on_console=False),
    Column(name="formats", is_on_console=False),
)


def tensors_table(rows: Sequence[ComparedTensor], finding: Finding | None, *, most: int = MAX_TENSOR_ROWS) -> Table:
    """Return the tensors that differ, the one that the finding is about marked; a page lists equal ones after them."""
    differing = [row for row in rows if not row.is_equal]
    shown = [*differing, *(row for row in rows if row.is_equal)][:most]
    origin = next((row for row in rows if is_origin(row, finding)), None)
    if origin is not None and origin not in shown:
        shown = [origin, *shown[:-1]]

    def table_row(row: ComparedTensor) -> TableRow:
        mark: Mark | None = "bad" if is_origin(row, finding) else None
        return TableRow(cells=_cells(row), mark=mark, anchor=DIVERGENCE if row is origin else None)

    left_out = len(rows) - len(shown)
    return Table(
        title="Tensors",
        columns=_COLUMNS,
        rows=[table_row(row) for row in differing],
        noun="tensors",
        note=f"{len(rows) - len(differing)} more are equal bit for bit",
        page_rows=[table_row(row) for row in shown],
        page_note=f"{left_out} more tensors; roundoff compare --csv writes them all." if left_out else "",
    )


def _cells(row: ComparedTensor) -> list[Cell]:
    place = f"{row.op} {row.parameter}" if row.parameter else row.op
    reference, candidate = format_of(row.reference_dtype), format_of(row.candidate_dtype)
    formats = reference if reference == candidate else f"{reference}, {candidate}"
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
