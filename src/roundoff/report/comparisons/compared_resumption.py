"""A resumed run next to the run it goes on with: what was not restored, and how the losses drift."""

from __future__ import annotations

from dataclasses import dataclass

from roundoff.compare.resume.compared_part import ComparedPart, Restoration, ResumePart
from roundoff.compare.resume.resume_comparison import ResumeComparison
from roundoff.report.comparisons.comparison_report import ComparisonReport
from roundoff.report.parts import Cell, Facts, Note, Part, Sentence, TableColumn, TablePart, TableRow
from roundoff.runs import Finding, JsonValue, object_of
from roundoff.words import join_words

_LABEL_WIDTH = 9


@dataclass(frozen=True, kw_only=True)
class ComparedResumption(ComparisonReport):
    """A comparison of a run with its resumption."""

    comparison: ResumeComparison
    finding: Finding | None

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"{self.comparison.candidate}, resumed from {self.comparison.reference}"

    def parts(self) -> list[Part]:
        """Say what was not restored, or that everything was, how the seam was found, and what was not compared."""
        found = self.finding
        if found is None:
            verdict: list[Part] = [Sentence(_agreement(self.comparison))]
        else:
            notes = [part.text for part in self.comparison.lost] if len(self.comparison.lost) > 1 else []
            verdict = [Sentence(f"{found.title[:1].upper()}{found.title[1:]}."), *(Note(f"{line}.") for line in notes)]
        return [*verdict, Facts(self._facts(), label_width=_LABEL_WIDTH)]

    def _facts(self) -> list[tuple[str, str]]:
        comparison = self.comparison
        facts = [("fix", part.fix) for part in comparison.lost[:3]]
        facts.append(
            ("seam", f"step {comparison.seam.step} of the run is step 0 of the resumed one, {comparison.seam.found_by}")
        )
        if comparison.differs:
            facts += [("losses", part.text) for part in comparison.parts if part.part is ResumePart.LOSSES]
        facts += [("unknown", f"{part.part}: {part.text}") for part in self._with(Restoration.UNKNOWN)]
        return [*facts, *(("unused", f"{part.part}: {part.text}") for part in self._with(Restoration.UNUSED))]

    def _with(self, answer: Restoration) -> list[ComparedPart]:
        return [part for part in self.comparison.parts if part.answer is answer and part.part is not ResumePart.LOSSES]

    def tables(self) -> list[TablePart]:
        """Return every part with its answer."""
        rows = [
            TableRow(
                cells=[Cell(shown=text, value=text) for text in (str(part.part), str(part.answer), part.text)],
                mark="bad" if part.answer is Restoration.LOST else None,
            )
            for part in self.comparison.parts
        ]
        columns = [TableColumn(name=name) for name in ("part", "answer", "found")]
        return [TablePart(title="What was compared", columns=columns, rows=rows, noun="parts")]

    def about(self) -> dict[str, str]:
        """Return what was compared."""
        return {"run": self.comparison.reference, "resumed": self.comparison.candidate}

    def to_object(self) -> dict[str, JsonValue]:
        """Return the comparison as a JSON object."""
        comparison, found = self.comparison, self.finding
        return {
            "reference": comparison.reference,
            "candidate": comparison.candidate,
            "verdict": _agreement(comparison) if found is None else found.title,
            "differs": comparison.differs,
            "finding": None if found is None else found.to_object(),
            "seam": {"step": comparison.seam.step, "found_by": comparison.seam.found_by},
            "lost": [str(part.part) for part in comparison.lost],
            "parts": [object_of(part) for part in comparison.parts],
            "drift": None if comparison.drift is None else object_of(comparison.drift),
        }


def _agreement(comparison: ResumeComparison) -> str:
    same = [
        str(part.part)
        for part in comparison.parts
        if part.answer is Restoration.RESTORED and part.part is not ResumePart.LOSSES
    ]
    text = f"All that was compared was restored at step {comparison.seam.step}: {join_words(same)}"
    drift = comparison.drift
    if drift is None:
        return f"{text}; the run has no loss after it to compare."
    steps = f"the losses of the {drift.num_steps} steps from there on"
    if drift.num_steps == 1:
        steps = "the loss of that step"
    if drift.is_identical:
        return f"{text}; {steps} {'is' if drift.num_steps == 1 else 'are'} identical."
    return f"{text}; {steps} agree{'s' if drift.num_steps == 1 else ''} within {100 * drift.largest_relative:.2g} %."
