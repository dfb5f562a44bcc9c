"""What the page of a run may look at: the run, what was found in it, and what it is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roundoff.compare.runs import RunComparison, compare_runs
from roundoff.diagnose import diagnose_run
from roundoff.diagnose.against import AGAINST_CODES, findings_against
from roundoff.diagnose.rules import RULES, Rule
from roundoff.runs import Finding, KeptRun, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run and everything that was found out about it."""

    run: KeptRun
    findings: Sequence[Finding]
    """The verdict first."""
    reference: KeptRun | None = None
    comparison: RunComparison | None = None
    """With the reference, where there is one."""

    @property
    def name(self) -> str:
        """The run's own name, or that of its folder."""
        return self.run.info.name or self.run.path.resolve().name

    @property
    def divergence(self) -> Finding | None:
        """What the comparison found first, where it found anything."""
        return next(iter(findings_against(self.comparison)), None) if self.comparison is not None else None


def view_of(run: Run, *, against: Run | None = None) -> RunView:
    """Gather what is known about a run.

    What a diagnosis wrote into its folder is taken as it is; a run that was not diagnosed, or that is held against
    another, is diagnosed now. Nothing is written.
    """
    kept = KeptRun.of(run)
    if against is None:
        told = kept.findings()
        return RunView(run=kept, findings=diagnose_run(kept).findings if told is None else tuple(told))
    reference = KeptRun.of(against)
    comparison = compare_runs(reference, kept)
    rule = Rule(
        codes=AGAINST_CODES,
        checks=f"what differs from {reference.path}",
        find=lambda _: findings_against(comparison),
    )
    findings = diagnose_run(kept, rules=(*RULES, rule)).findings
    return RunView(run=kept, findings=findings, reference=reference, comparison=comparison)
