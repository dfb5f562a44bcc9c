"""Two runs that must compute the same, as an assertion."""

from __future__ import annotations

from pathlib import Path

from roundoff.compare.runs.run_comparison import compare_runs
from roundoff.diagnose.against import findings_against
from roundoff.report.comparisons.compared_runs import ComparedRuns
from roundoff.runs import Run


class RunsDiffer(AssertionError):
    """Two runs differ by more than their formats explain; `report` holds the comparison."""

    def __init__(self, report: ComparedRuns) -> None:
        super().__init__(report.text())
        self.report = report


def assert_same_run(
    reference: str | Path | Run, candidate: str | Path | Run, *, step: int | None = None, rank: int | None = None
) -> None:
    """Raise `RunsDiffer` if the candidate differs from the reference by more than their formats explain.

    Its text is what `roundoff compare` prints: the op that introduces the difference, where, and by how much.

    Args:
        reference: a run, or its folder.
        candidate: the run that is held against it.
        step: compare only this step.
        rank: compare only this rank.

    Raises:
        RunsDiffer: they differ.
        CompareError: there is nothing to compare.
    """
    runs = [run if isinstance(run, Run) else Run.open(run) for run in (reference, candidate)]
    comparison = compare_runs(*runs, step=step, rank=rank)
    report = ComparedRuns(
        comparison=comparison,
        finding=next(iter(findings_against(comparison)), None),
        reference=str(runs[0].path),
        candidate=str(runs[1].path),
    )
    if report.differs:
        raise RunsDiffer(report)
