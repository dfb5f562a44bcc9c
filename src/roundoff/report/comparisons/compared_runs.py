"""Two compared runs: where the candidate first differs, the losses, the differences along the steps; or two steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from roundoff.compare.runs.divergence import ComparedTensor, UnpairedOp
from roundoff.diagnose.wording import format_distinct, format_of, format_short
from roundoff.report.comparisons.comparison_report import ComparisonReport
from roundoff.report.loss_curve import loss_curve
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.page import section
from roundoff.report.parts import Cell, Facts, Mark, Note, Part, Sentence, TableColumn, TablePart, TableRow, table
from roundoff.runs import Finding, JsonValue, Severity
from roundoff.words import join_names, plural

if TYPE_CHECKING:
    from roundoff.compare.runs.fp64_errors import ComparedError
    from roundoff.compare.runs.run_comparison import RunComparison
    from roundoff.compare.runs.step_pair import Growth, ParameterMove, StepPairComparison
    from roundoff.compare.settings.setting_difference import SettingDifference

MAX_UNPAIRED = 6
MAX_TENSOR_ROWS = 2000
MAX_NEARER = 5
"""Ops in which one run is nearer to fp64 than the other, the largest gaps first."""
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

    def tables(self) -> list[TablePart]:
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
            "fp64_errors": [{**asdict(error), "nearer": error.nearer} for error in comparison.fp64_errors],
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
    return [*parts, *_nearer_parts(comparison.fp64_errors), *map(Note, _describe_unpaired(comparison.unpaired))]


def _nearer_parts(errors: Sequence[ComparedError]) -> list[Part]:
    """Say which run is nearer to fp64, and in which ops most."""
    if not errors:
        return []
    sides = [error.nearer for error in errors]
    counts = f"the reference in {sides.count('reference')}, the candidate in {sides.count('candidate')}"
    lines = [f"nearer to fp64, of {plural(len(errors), 'op')}: {counts}, alike in {sides.count(None)}"]
    apart = sorted((error for error in errors if error.nearer), key=_gap, reverse=True)
    for error in apart[:MAX_NEARER]:
        ops = error.reference_ops
        if error.candidate_ops != ops:
            ops = f"{ops} against {error.candidate_ops}"
        amounts = f"{error.reference:.2g} against {error.candidate:.2g}"
        factor = f", {format_short(error.ratio)} times" if math.isfinite(error.ratio) else ""
        where = f"step {error.step}, {error.phase}"
        lines.append(f"{error.site} / {ops}, {where}: the {error.nearer} is nearer{factor} ({amounts} of the result)")
    return [Note(f"{line}.") for line in lines]


def _gap(error: ComparedError) -> float:
    return abs(error.reference - error.candidate)


def _finding_parts(finding: Finding) -> list[Part]:
    is_sentence = finding.op is None or finding.title.startswith("the ")
    title = finding.title[:1].upper() + finding.title[1:] if is_sentence else finding.title
    settings = [line for line in _related_settings(finding) if line not in f"{finding.title}\n{finding.why}"]
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
    columns = [TableColumn(name="run"), TableColumn(name="loss")]
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


def settings_table(settings: Sequence[SettingDifference]) -> TablePart:
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
    columns = [TableColumn(name=name) for name in names]
    return TablePart(title="Settings that differ", columns=columns, rows=rows, noun="settings")


_COLUMNS = (
    TableColumn(name="step", is_number=True),
    TableColumn(name="phase"),
    TableColumn(name="site"),
    TableColumn(name="op"),
    TableColumn(name="shape", is_on_console=False),
    TableColumn(name="relative", is_number=True),
    TableColumn(name="inherited", is_number=True),
    TableColumn(name="excess", is_number=True),
    TableColumn(name="reference absmax", is_number=True, is_on_console=False),
    TableColumn(name="candidate absmax", is_number=True, is_on_console=False),
    TableColumn(name="formats", is_on_console=False),
)


def tensors_table(rows: Sequence[ComparedTensor], finding: Finding | None, *, most: int = MAX_TENSOR_ROWS) -> TablePart:
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
    return TablePart(
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


# -- two steps ---------------------------------------------------------------------------------------------------------


MAX_PARAMETERS = 5
MAX_GROWTHS = 40
_LABEL_WIDTH = 11


@dataclass(frozen=True)
class ComparedSteps(ComparisonReport):
    """A comparison of two steps, of one run or of two."""

    comparison: StepPairComparison

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"Step {self.comparison.candidate_step} against step {self.comparison.reference_step}"

    @property
    def differs(self) -> bool:
        """Two steps of a training always differ, which is no finding."""
        return False

    def parts(self) -> list[Part]:
        """Say how many weights changed, which did not, which most, and where values begin to grow."""
        moved = self._changed_moves()
        still = [move.parameter for move in self.comparison.moves if move.is_equal]
        span = f"from step {self.comparison.reference_step} to step {self.comparison.candidate_step}"
        facts = [("unchanged", join_names(still, at_most=MAX_PARAMETERS))] if still and moved else []
        facts += [("changed", _describe_move(move)) for move in moved[:MAX_PARAMETERS]]
        return [
            Sentence(f"{len(moved)} of {len(self.comparison.moves)} parameters changed {span}."),
            Facts(facts, label_width=_LABEL_WIDTH),
            Note(self._growth_sentence()),
        ]

    def tables(self) -> list[TablePart]:
        """Return every parameter, those that changed most first, and the results that grew most."""
        unchanged = [move for move in self.comparison.moves if move.is_equal]
        growths = sorted(self.comparison.growths, key=lambda growth: -growth.ratio)[:MAX_GROWTHS]
        found = [_parameters_table([*self._changed_moves(), *unchanged])]
        return [*found, _growths_table(growths)] if growths else found

    def to_object(self) -> dict[str, JsonValue]:
        """Return the comparison as a JSON object."""
        first = self.comparison.first_growth
        return {
            "reference_step": self.comparison.reference_step,
            "candidate_step": self.comparison.candidate_step,
            "parameters": [asdict(move) for move in self.comparison.moves],
            "first_growth": None if first is None else asdict(first),
            "growths": [asdict(growth) for growth in self.comparison.growths],
        }

    def _changed_moves(self) -> list[ParameterMove]:
        """Return the parameters that changed, most of all first; a change from zero has no size and comes last."""
        moved = [move for move in self.comparison.moves if not move.is_equal]
        return sorted(moved, key=lambda move: -move.relative if math.isfinite(move.relative) else 0.0)

    def _growth_sentence(self) -> str:
        if not self.comparison.growths:
            return "The ops of these steps were not recorded, so only norms could be compared."
        first = self.comparison.first_growth
        if first is not None:
            return f"values begin to grow here: {_describe_growth(first)}"
        largest = max(self.comparison.growths, key=lambda growth: growth.ratio)
        return f"no result grew much; the most: {_describe_growth(largest)}"


def _describe_move(move: ParameterMove) -> str:
    if math.isinf(move.relative):
        return f"{move.parameter}   from zero"
    share = f"{100 * move.relative:.3g} %" if move.relative >= 1e-4 else f"{move.relative:.2g}"
    return f"{move.parameter}   by {share}"


def _describe_growth(growth: Growth) -> str:
    place = f"{growth.site} / {growth.op}, {growth.phase}"
    source = f"   {growth.source}" if growth.source else ""
    return f"{place}: {growth.reference_absmax:.3g} -> {growth.candidate_absmax:.3g}{source}"


def _parameters_table(moves: list[ParameterMove]) -> TablePart:
    rows = [
        TableRow(
            cells=[
                Cell(shown=move.parameter, value=move.parameter),
                Cell(shown="" if move.is_equal else f"{move.relative:.3g}", value=move.relative),
                Cell(shown="unchanged" if move.is_equal else "", value="unchanged" if move.is_equal else ""),
            ]
        )
        for move in moves
    ]
    columns = [TableColumn(name="parameter"), TableColumn(name="change", is_number=True), TableColumn(name="note")]
    return TablePart(title="Parameters", columns=columns, rows=rows, noun="parameters")


def _growths_table(growths: list[Growth]) -> TablePart:
    columns = [
        TableColumn(name="phase"),
        TableColumn(name="site"),
        TableColumn(name="op"),
        TableColumn(name="reference absmax", is_number=True),
        TableColumn(name="candidate absmax", is_number=True),
        TableColumn(name="ratio", is_number=True),
        TableColumn(name="source"),
    ]
    rows = [
        TableRow(
            cells=[
                *(Cell(shown=text, value=text) for text in (growth.phase, growth.site, growth.op)),
                *(
                    Cell(shown=f"{number:.3g}", value=number)
                    for number in (growth.reference_absmax, growth.candidate_absmax, growth.ratio)
                ),
                Cell(shown=growth.source or "", value=growth.source or ""),
            ]
        )
        for growth in growths
    ]
    return TablePart(title="Results that grew most", columns=columns, rows=rows, noun="results")
