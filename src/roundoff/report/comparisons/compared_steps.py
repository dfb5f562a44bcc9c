"""Two compared steps: which weights changed, and where values grow."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from roundoff.report.comparisons.comparison_report import ComparisonReport
from roundoff.report.html_table import Cell, Column, TableRow
from roundoff.report.parts import Facts, Note, Part, Sentence, Table
from roundoff.runs import JsonValue
from roundoff.words import join_names

if TYPE_CHECKING:
    from roundoff.compare.runs.step_pair import Growth, ParameterMove, StepPairComparison

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
        moved = self._moved()
        still = [move.parameter for move in self.comparison.moves if move.is_equal]
        span = f"from step {self.comparison.reference_step} to step {self.comparison.candidate_step}"
        facts = [("unchanged", join_names(still, at_most=MAX_PARAMETERS))] if still and moved else []
        facts += [("changed", _describe_move(move)) for move in moved[:MAX_PARAMETERS]]
        return [
            Sentence(f"{len(moved)} of {len(self.comparison.moves)} parameters changed {span}."),
            Facts(facts, label_width=_LABEL_WIDTH),
            Note(self._growth_sentence()),
        ]

    def tables(self) -> list[Table]:
        """Return every parameter, those that changed most first, and the results that grew most."""
        unchanged = [move for move in self.comparison.moves if move.is_equal]
        growths = sorted(self.comparison.growths, key=lambda growth: -growth.ratio)[:MAX_GROWTHS]
        found = [_parameters_table([*self._moved(), *unchanged])]
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

    def _moved(self) -> list[ParameterMove]:
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


def _parameters_table(moves: list[ParameterMove]) -> Table:
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
    columns = [Column(name="parameter"), Column(name="change", is_number=True), Column(name="note")]
    return Table(title="Parameters", columns=columns, rows=rows, noun="parameters")


def _growths_table(growths: list[Growth]) -> Table:
    columns = [
        Column(name="phase"),
        Column(name="site"),
        Column(name="op"),
        Column(name="reference absmax", is_number=True),
        Column(name="candidate absmax", is_number=True),
        Column(name="ratio", is_number=True),
        Column(name="source"),
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
    return Table(title="Results that grew most", columns=columns, rows=rows, noun="results")
