"""Two runs of one training with different layouts: what is wrong with the candidate's, and what was put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from roundoff.compare.layouts.layout_comparison import LayoutComparison
from roundoff.compare.layouts.layout_fault import ComparedParts
from roundoff.report.comparisons.comparison_report import ComparisonReport
from roundoff.report.parts import Cell, Facts, Note, Part, Sentence, TableColumn, TablePart, TableRow
from roundoff.runs import Finding, JsonValue, object_of
from roundoff.words import join_words, plural

_LABEL_WIDTH = 9
_HEADER = ("step", "what", "name", "result", "factor", "divided", "ranks")


@dataclass(frozen=True, kw_only=True)
class ComparedLayouts(ComparisonReport):
    """A comparison of two layouts."""

    comparison: LayoutComparison
    findings: Sequence[Finding]

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"{self.comparison.candidate} against {self.comparison.reference}: layouts"

    @property
    def is_answered(self) -> bool:
        """Whether a fault was found, or gradients agree."""
        return self.comparison.is_answered

    def parts(self) -> list[Part]:
        """Say what is wrong, or that the layouts agree, what was put together and what could not be."""
        if not self.findings:
            verdict: list[Part] = [Sentence(_agreement(self.comparison))]
        else:
            first = self.findings[0]
            lines = [f"{line}." for line in first.why.splitlines()]
            verdict = [Sentence(f"{first.title[:1].upper()}{first.title[1:]}."), *map(Note, lines)]
        return [*verdict, Facts(self._facts(), label_width=_LABEL_WIDTH)]

    def _facts(self) -> list[tuple[str, str]]:
        comparison = self.comparison
        first, second = (plural(num, "rank") for num in comparison.num_ranks)
        mesh = f", {comparison.mesh}" if comparison.mesh else ""
        facts = [("fix", finding.fix) for finding in self.findings[:1]]
        facts.append(("layouts", f"{first} in the reference, {second} here{mesh}"))
        if comparison.rows:
            facts.append(("compared", _counts(comparison.rows)))
        if comparison.num_read < comparison.num_ranks[1]:
            facts.append(("read", f"{plural(comparison.num_read, 'rank')}; the others have the same hashes"))
        unknown = [row for row in comparison.rows if row.why_not]
        facts += [("unknown", f"{row.kind} of {row.name}: {row.why_not}") for row in unknown[:3]]
        return [*facts, *(("unknown", note) for note in comparison.notes)]

    def tables(self) -> list[TablePart]:
        """Return everything that was put together."""
        rows = [
            TableRow(
                cells=[
                    Cell(shown=str(row.step), value=row.step),
                    Cell(shown=row.kind, value=row.kind),
                    Cell(shown=row.name, value=row.name),
                    Cell(shown=row.agreement, value=row.agreement),
                    Cell(shown=f"{row.factor:.4g}", value=row.factor),
                    Cell(shown=", ".join(f"dim {dim}" for dim in row.divided_dims), value=None),
                    Cell(shown=str(row.num_ranks), value=row.num_ranks),
                ],
                mark=None if row.agreement in ("equal", "not put together") else "bad",
            )
            for row in self.comparison.rows
        ]
        columns = [TableColumn(name=name, is_number=name in ("step", "factor", "ranks")) for name in _HEADER]
        return [TablePart(title="What was put together", columns=columns, rows=rows, noun="tensors")]

    def about(self) -> dict[str, str]:
        """Return what was compared."""
        return {"reference": self.comparison.reference, "candidate": self.comparison.candidate}

    def to_object(self) -> dict[str, JsonValue]:
        """Return the comparison as a JSON object."""
        comparison = self.comparison
        return {
            "reference": comparison.reference,
            "candidate": comparison.candidate,
            "verdict": self.findings[0].title if self.findings else _agreement(comparison),
            "differs": comparison.differs,
            "finding": self.findings[0].to_object() if self.findings else None,
            "ranks": list(comparison.num_ranks),
            "mesh": comparison.mesh,
            "steps": list(comparison.steps),
            "notes": list(comparison.notes),
            "num_equal": comparison.num_equal,
            "tensors": [object_of(row) for row in comparison.rows],
        }


def _counts(rows: Sequence[ComparedParts]) -> str:
    found = Counter(row.kind for row in rows)
    equal = Counter(row.kind for row in rows if row.agreement == "equal")
    return join_words([f"{equal[kind]} of {plural(count, kind)} equal" for kind, count in found.items()])


def _agreement(comparison: LayoutComparison) -> str:
    if not comparison.num_equal:
        return "Nothing could be put together, so that nothing is known about this layout."
    steps = plural(len(comparison.steps), "step")
    if not comparison.is_answered:
        return f"No gradient of {steps} could be compared, so that nothing is known about this layout; see the notes."
    if comparison.notes or any(row.why_not for row in comparison.rows):
        return f"What could be put together of {steps} agrees with the reference."
    return f"The layouts agree: everything that was put together of {steps} is equal within rounding."
