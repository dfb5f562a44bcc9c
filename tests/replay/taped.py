"""Tapes a step of a real training, for tests of what is made of tapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundoff.record.loop.sites import Sites
from roundoff.replay.replayed_step import ReplayedStep
from roundoff.replay.snapshots import Snapshot
from roundoff.replay.state import Training
from roundoff.replay.step_tape import StepTape
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import start_watching


@dataclass(frozen=True, slots=True, kw_only=True)
class Taped:
    """The last step that was taken, and what leads to it."""

    training: Training
    sites: Sites
    snapshot: Snapshot
    tapes: list[StepTape]
    step: Callable[[], Any]
    """What was trained; it keeps models and optimizers alive, which a tape does not."""

    @property
    def path(self) -> tuple[Snapshot, list[StepTape]]:
        """What a replay of the step goes through."""
        return self.snapshot, self.tapes

    @property
    def tape(self) -> StepTape:
        """The last step."""
        return self.tapes[-1]

    def replayed_step(self) -> ReplayedStep:
        """The step, ready to be played again."""
        return ReplayedStep(self.training, self.snapshot, self.tapes, self.sites)


def taped(folder: Path, step: Callable[[], Any], *, num_steps: int = 1) -> Taped:
    """Watch a number of steps and return the last."""
    watch = start_watching(to=folder, settings=WatchSettings(recorded_steps=(), probe_seconds=0, kept_batches=0))
    with watch.running():
        for _ in range(num_steps):
            step()
        path = watch._snapshots.path_to(watch.step, among=[watch._tape.so_far()])
        assert path is not None, "the step can be rebuilt"
        return Taped(training=watch._training, sites=watch.sites, snapshot=path[0], tapes=path[1], step=step)
