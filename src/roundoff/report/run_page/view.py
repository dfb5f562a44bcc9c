"""What the page of a run may look at: the run, what was found in it, and what it is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundoff.runs import CachedRun, Finding, Run

if TYPE_CHECKING:
    from roundoff.compare.runs.run_comparison import RunComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run and everything that was found out about it."""

    run: CachedRun
    findings: Sequence[Finding]
    """The verdict first."""
    reference: CachedRun | None = None
    comparison: RunComparison | None = None
    """With the reference, where there is one."""
    divergence: Finding | None = None
    """What the comparison found first, where it found anything."""

    @property
    def name(self) -> str:
        """The run's own name, or that of its folder."""
        return self.run.info.name or self.run.path.resolve().name


def view_of(run: Run, *, against: Run | None = None) -> RunView:
    """Gather what is known about a run.

    What a diagnosis wrote into its folder is taken as it is; a run that was not diagnosed, or that is held against
    another, is diagnosed now. Nothing is written.
    """
    kept = CachedRun.of(run)
    if against is not None:
        return _view_against(kept, CachedRun.of(against))
    told = kept.findings()
    if told is None:
        from roundoff.diagnose import diagnose_run  # a diagnosed run needs no rules

        told = list(diagnose_run(kept).findings)
    return RunView(run=kept, findings=told)


def _view_against(run: CachedRun, reference: CachedRun) -> RunView:
    # Comparing loads the recipes and with them half of torch, which a page without a reference does not wait for.
    from roundoff.compare.runs.run_comparison import compare_runs
    from roundoff.diagnose import diagnose_run
    from roundoff.diagnose.against import AGAINST_CODES, findings_against
    from roundoff.diagnose.rules import RULES, Rule

    comparison = compare_runs(reference, run)
    found = findings_against(comparison)
    rule = Rule(codes=AGAINST_CODES, checks=f"what differs from {reference.path}", find=lambda _: found)
    return RunView(
        run=run,
        findings=diagnose_run(run, rules=(*RULES, rule)).findings,
        reference=reference,
        comparison=comparison,
        divergence=next(iter(found), None),
    )
