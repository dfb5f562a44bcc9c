"""The steps of a run whose ops can be looked at."""

from __future__ import annotations

from collections.abc import Iterator

from roundoff.runs import Run


def recorded_steps(run: Run) -> Iterator[tuple[int, Run]]:
    """Yield each step that was recorded or replayed, in order, with the run that holds its events."""
    recorded, replayed = set(run.steps), set(run.replayed_steps)
    for step in sorted(recorded | replayed):
        replay = run.replay(step) if step in replayed else None
        if replay is not None and step in replay.steps:
            yield step, replay
        elif step in recorded:
            yield step, run
