"""What a test can demand: a healthy training, two runs that compute the same, and exact ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import nn
from torch.optim import Optimizer

from roundoff.compare.layouts.layout_comparison import compare_layouts, layouts_differ
from roundoff.compare.runs.run_comparison import compare_runs
from roundoff.diagnose import Diagnosis
from roundoff.diagnose.against import findings_against
from roundoff.diagnose.layout_findings import findings_about_layouts
from roundoff.errors import CompareError
from roundoff.record import recording
from roundoff.record.reference import ReferenceKind
from roundoff.report.comparisons.compared_layouts import ComparedLayouts
from roundoff.report.comparisons.compared_runs import ComparedRuns
from roundoff.report.findings_text import failure_lines, findings_text
from roundoff.runs import Event, Run
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watch import Watch
from roundoff.watch.watching import watching_with
from roundoff.words import plural, text_table


class HealthyTraining:
    """Called, it opens a block; the test fails with the verdict if the training inside is not healthy.

    Healthy means: it was watched from the first to the last step, and there is neither an error nor a warning.
    """

    def __init__(self, new_folder: Callable[[], Path], *, is_kept: bool) -> None:
        self._new_folder = new_folder
        self._is_kept = is_kept
        """Whether the run of a test that fails stays where it is."""

    @contextmanager
    def __call__(
        self, model: nn.Module | None = None, optimizer: Optimizer | None = None, *, probe_seconds: float = 10.0
    ) -> Iterator[Watch]:
        """Watch every step of the training inside the block.

        Args:
            model: names layers from the start; without it models are met as they are called.
            optimizer: known from the start; without it optimizers are found when training begins.
            probe_seconds: how long experiments with the last step may take after the training.
        """
        settings = WatchSettings(every_step=True, probe_seconds=probe_seconds)
        watch: Watch | None = None
        try:
            with watching_with(settings, model, optimizer, to=self._new_folder()) as watch:
                yield watch
        except Exception as error:
            if watch is not None:
                self._add_verdict(error, watch)
            raise
        diagnosis, verdict = self._diagnose(watch)
        if not _is_healthy(diagnosis):
            pytest.fail(verdict, pytrace=False)

    def _add_verdict(self, error: Exception, watch: Watch) -> None:
        """Add the verdict to an exception of the training, unless the exception is all that was found."""
        diagnosis, verdict = self._diagnose(watch)
        if any(finding.rule != "exception" for finding in diagnosis.findings) and not diagnosis.is_clean:
            error.add_note(verdict)

    def _diagnose(self, watch: Watch) -> tuple[Diagnosis, str]:
        """Return what was found, also as text, without commands that would open a run which is about to be deleted."""
        diagnosis, screen = watch.diagnosis(), watch.verdict()
        if self._is_kept:
            return diagnosis, screen
        failed = failure_lines(diagnosis.answers, diagnosis.failures)
        text = findings_text(diagnosis.findings, failed=failed, coverage=diagnosis.coverage)
        return diagnosis, f"{text}\nTo keep the run and a page about it: pytest --roundoff-artifacts DIR"


def _is_healthy(diagnosis: Diagnosis) -> bool:
    return diagnosis.is_clean and diagnosis.is_complete and diagnosis.coverage.watched == "complete"


class RunsDiffer(AssertionError):
    """Two runs differ by more than their formats explain; `report` holds the comparison."""

    def __init__(self, report: ComparedRuns | ComparedLayouts) -> None:
        super().__init__(report.text())
        self.report = report


def assert_same_run(
    reference: str | Path | Run, candidate: str | Path | Run, *, step: int | None = None, rank: int | None = None
) -> None:
    """Raise `RunsDiffer` if the candidate differs from the reference by more than their formats explain.

    Its text is what `roundoff compare` prints: the op that introduces the difference, where, and by how much. Runs with
    other layouts are put together first.

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
    if rank is None and layouts_differ(*runs):
        layouts = compare_layouts(*runs, step=step)
        compared = ComparedLayouts(comparison=layouts, findings=findings_about_layouts(layouts))
        if not layouts.is_answered:
            raise CompareError(compared.text())
        if layouts.differs:
            raise RunsDiffer(compared)
        return
    comparison = compare_runs(*runs, step=step, rank=rank)
    report = ComparedRuns(
        comparison=comparison,
        finding=next(iter(findings_against(comparison)), None),
        reference=str(runs[0].path),
        candidate=str(runs[1].path),
    )
    if report.differs:
        raise RunsDiffer(report)


_MAX_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactOps:
    """How exact ops must be: the arguments of `@pytest.mark.numerics`."""

    max_ulps: float
    """The largest error that an op may introduce, in units of the eps of its result's format."""
    reference: ReferenceKind = "fp64"
    """Each op is run again on the same inputs, in fp64 or on the CPU."""
    sites: Sequence[str] | str | None = None
    """Shell patterns: only these layers."""
    ops: Sequence[str] | str | None = None
    """Shell patterns: only these ops, such as `aten.*mm`."""
    phases: Sequence[str] | str | None = None
    """Only these of forward, backward, optimizer and eval."""

    @contextmanager
    def recording(self, folder: Path) -> Iterator[None]:
        """Record every op inside the block into a run folder, with the error that it introduces."""
        with recording(
            to=folder,
            sites=self.sites,
            ops=self.ops,
            phases=self.phases,
            reference=self.reference,
            stacks=True,
            strict=True,
        ):
            yield

    def check(self, folder: Path) -> None:
        """Fail the test if an op that was recorded is not exact enough, or if none could be checked."""
        judged = [event for event in Run.open(folder).iter_events() if event.introduced_ulps is not None]
        if not judged:
            pytest.fail(f"No op of this test could be held against {self.reference}.", pytrace=False)
        inexact = [event for event in judged if not _ulps(event) <= self.max_ulps]
        if inexact:
            pytest.fail(self._describe(inexact, num_judged=len(judged)), pytrace=False)

    def _describe(self, inexact: Sequence[Event], *, num_judged: int) -> str:
        ordered = sorted(inexact, key=_ulps, reverse=True)
        header = ("error", "op", "site", "phase", "place")
        lines = [
            (f"{_ulps(event):.3g} ulp of {event.dtype}", event.op_name, event.site, event.phase, event.source or "")
            for event in ordered[:_MAX_SHOWN]
        ]
        what = f"{len(inexact)} of {plural(num_judged, 'result')} of ops"
        more = len(inexact) - len(lines)
        text = [
            f"{what} {'is' if len(inexact) == 1 else 'are'} further from {self.reference} than {self.max_ulps:g} ulp:",
            text_table([header, *lines], left=set(header), ruled=False),
            *([f"and {more} more"] if more else []),
        ]
        return "\n".join(text)


def _ulps(event: Event) -> float:
    error = event.introduced_ulps
    return math.inf if error is None or math.isnan(error) else error
