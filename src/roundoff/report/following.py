"""What to type after a verdict: the commands that lead on from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roundoff.diagnose import Diagnosis
    from roundoff.runs import Run


def saved_line(run: Run, diagnosis: Diagnosis) -> str | None:
    """Say what was kept of the step that the verdict is about."""
    step = diagnosis.findings[0].step if diagnosis.findings else None
    if step is None or step not in run.replayed_steps:
        return None
    return f"the batch and the state before the step:  roundoff replay {run.path}"


def next_commands(run: Run, diagnosis: Diagnosis) -> list[str]:
    """Return the command that makes a page of the run, and the one that shows the events around the verdict, if any."""
    if diagnosis.is_clean:
        return []
    report = f"roundoff report {run.path}"
    verdict = diagnosis.findings[0]
    if verdict.step is None or verdict.site is None:
        return [report]
    replay = run.path / "replay" / f"step{verdict.step}"
    folder = replay if verdict.step in run.replayed_steps else run.path
    has_events = verdict.step in run.replayed_steps or verdict.step in run.steps
    show = f"roundoff runs show {folder} --step {verdict.step} --site '{verdict.site}'"
    return [report, show] if has_events else [report]
