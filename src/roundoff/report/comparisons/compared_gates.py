"""Gates and what they measured: one line for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roundoff.compare.curves.gates import GateResult
from roundoff.report.comparisons.comparison_report import ComparisonReport
from roundoff.report.parts import Cell, Note, Part, Sentence, TableColumn, TablePart, TableRow
from roundoff.runs import JsonValue
from roundoff.words import plural


@dataclass(frozen=True, kw_only=True)
class ComparedGates(ComparisonReport):
    """The gates of a comparison."""

    comparison: Sequence[GateResult]
    references: Sequence[str]
    candidate: str

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"{self.candidate} against {', '.join(self.references)}"

    @property
    def differs(self) -> bool:
        """Whether a gate failed."""
        return any(not result.is_passed for result in self.comparison)

    def parts(self) -> list[Part]:
        """Return the verdict, and a line for each gate."""
        num_failed = sum(not result.is_passed for result in self.comparison)
        num = len(self.comparison)
        verdict = f"{num_failed} of {plural(num, 'gate')} failed." if num_failed else f"{plural(num, 'gate')} passed."
        return [Sentence(verdict), *(Note(gate_line(result)) for result in self.comparison)]

    def tables(self) -> list[TablePart]:
        """Return the gates with their numbers."""
        columns = [
            TableColumn(name=name, is_number=name not in ("gate", "answer"))
            for name in ("gate", "answer", "gap", "limit", "noise", "steps")
        ]
        rows = [
            TableRow(
                cells=[
                    Cell(shown=result.gate.name),
                    Cell(shown=_answer(result)),
                    Cell(shown=result.gate.format(result.gap), value=result.gap),
                    Cell(shown=result.gate.format(result.gate.limit), value=result.gate.limit),
                    Cell(shown="" if result.noise is None else result.gate.format(result.noise), value=result.noise),
                    Cell(shown=str(result.num_steps), value=result.num_steps),
                ],
                mark=None if result.is_passed else "bad",
            )
            for result in self.comparison
        ]
        return [TablePart(title="Gates", columns=columns, rows=rows, noun="gates")]

    def to_object(self) -> dict[str, JsonValue]:
        """Return the gates as a JSON object."""
        return {
            "references": list(self.references),
            "candidate": self.candidate,
            "passed": not self.differs,
            "gates": [
                {
                    "gate": result.gate.name,
                    "passed": result.is_passed,
                    "gap": result.gap,
                    "limit": result.gate.limit,
                    "relative": result.gate.is_relative,
                    "noise": result.noise,
                    "num_references": result.num_references,
                    "num_steps": result.num_steps,
                    "step": result.step,
                }
                for result in self.comparison
            ],
        }


def gate_line(result: GateResult) -> str:
    """Say in one line whether a gate passed, and what it measured."""
    gate = result.gate
    if math.isinf(result.gap):
        return f"{gate.name}: failed, the candidate is not finite at step {result.step}"
    where = f" at step {result.step}" if result.step is not None else ""
    sign = "+" if result.gap > 0 else ""
    text = f"{gate.name}: {_answer(result)}, {sign}{gate.format(result.gap)}{where} (limit {gate.format(gate.limit)}"
    if result.noise is not None:
        text += f"; {result.num_references} reference runs differ by up to {gate.format(result.noise)}"
    return f"{text})"


def _answer(result: GateResult) -> str:
    return "passed" if result.is_passed else "failed"
