"""A run with everything that is known about it: what a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundoff.runs import CachedRun, Finding, Run

if TYPE_CHECKING:
    from roundoff.compare.runs.run_comparison import RunComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run, its findings, and its comparison with a reference if there is one."""

    run: CachedRun
    findings: Sequence[Finding]
    """The verdict first."""
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
    if findings is None:
        from roundoff.diagnose.diagnosis import diagnose_run  # a diagnosed run needs no rules

        findings = list(diagnose_run(cached).findings)
    return RunView(run=cached, findings=findings)


def _view_against(run: CachedRun, reference: CachedRun) -> RunView:
    # Comparing loads the recipes and half of torch with them; a report without a reference should not wait for that.
    from roundoff.compare.runs.run_comparison import compare_runs
    from roundoff.diagnose.against import AGAINST_CODES, findings_against
    from roundoff.diagnose.diagnosis import diagnose_run
    from roundoff.diagnose.rules import RULES, Rule

    comparison = compare_runs(reference, run)
    found = findings_against(comparison)
    rule = Rule(codes=AGAINST_CODES, checks=f"differences from {reference.path}", find=lambda _: found)
    return RunView(
        run=run,
        findings=diagnose_run(run, rules=(*RULES, rule)).findings,
        reference=reference,
        comparison=comparison,
        divergence=next(iter(found), None),
    )
