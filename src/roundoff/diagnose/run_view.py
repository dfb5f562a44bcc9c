"""A run with everything that is known about it: what a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from roundoff.runs import CachedRun, Failure, Finding, RuleAnswer, Run

if TYPE_CHECKING:
    from roundoff.compare.runs.run_comparison import RunComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run, its findings, and its comparison with a reference if there is one."""

    run: CachedRun
    findings: Sequence[Finding]
    """The verdict first."""
    answers: Sequence[RuleAnswer] = ()
    """What each rule answered, if that is known."""
    failures: Sequence[Failure] = ()
    """Checks that failed inside roundoff."""
    reference: CachedRun | None = None
    comparison: RunComparison | None = None
    """With the reference."""
    divergence: Finding | None = None
    """The first difference that the comparison found."""

    @property
    def name(self) -> str:
        """The run's own name, or that of its folder."""
        return self.run.info.name or self.run.path.resolve().name


def view_run(run: Run, *, against: Run | None = None) -> RunView:
    """Gather what is known about a run, and write nothing.

    Saved findings are used as they are. A run without them, or one that is compared with a reference, is diagnosed.
    """
    cached = CachedRun.of(run)
    if against is not None:
        return _view_against(cached, CachedRun.of(against))
    findings = cached.findings()
    if findings is not None:
        return RunView(run=cached, findings=findings, answers=cached.rule_answers(), failures=cached.failures())
    from roundoff.diagnose.diagnosis import diagnose_run  # a diagnosed run needs no rules

    diagnosis = diagnose_run(cached)
    failures = [*cached.failures(), *diagnosis.failures]
    return RunView(run=cached, findings=diagnosis.findings, answers=diagnosis.answers, failures=failures)


def _view_against(run: CachedRun, reference: CachedRun) -> RunView:
    # Comparing loads the recipes and half of torch with them; a report without a reference should not wait for that.
    from roundoff.compare.runs.run_comparison import compare_runs
    from roundoff.diagnose.against import findings_against, reference_rule
    from roundoff.diagnose.diagnosis import diagnose_run
    from roundoff.diagnose.rules import RULES

    comparison = compare_runs(reference, run)
    found = findings_against(comparison)
    diagnosis = diagnose_run(run, rules=(*RULES, replace(reference_rule(reference), find=lambda _: found)))
    probes = [failure for failure in run.failures() if failure.check != "rule"]
    return RunView(
        run=run,
        findings=diagnosis.findings,
        answers=diagnosis.answers,
        failures=[*probes, *diagnosis.failures],
        reference=reference,
        comparison=comparison,
        divergence=next(iter(found), None),
    )
