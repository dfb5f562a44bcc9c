"""The verdict on a watched training that has ended: found from its run folder, in the words of the command line."""

from __future__ import annotations

from roundoff.diagnose import diagnose_and_save
from roundoff.report import verdict_text, watched_text
from roundoff.runs import Finding, Run
from roundoff.watch.watch import Watch


def verdict_of(watch: Watch) -> tuple[tuple[Finding, ...], str]:
    """Diagnose what the watch has kept; return the findings, which go into findings.json, and the screen to print."""
    run = Run.open(watch.folder)
    diagnosis = diagnose_and_save(run)
    watched = watched_text(num_steps=watch.num_steps, seconds=watch.seconds, cost=watch.cost)
    screen = verdict_text(run, diagnosis, watched=f"{watched}; {watch.folder}", draws=False)
    complaints = [f"roundoff: {complaint}" for complaint in watch.complaints]
    return tuple(diagnosis.findings), "\n".join([*complaints, screen])
