"""What is done at the end of a step: the first ones are recorded, a bad one is investigated, and undone if asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from roundoff.replay.generators import Generators
from roundoff.replay.rank_consensus import ReplayRequests, all_agree, num_ranks
from roundoff.replay.snapshots import Snapshot, Snapshots
from roundoff.replay.step_tape import StepTape
from roundoff.runs import Anomaly
from roundoff.watch.respond import Responder
from roundoff.watch.settings import WatchSettings


class TrainingStopped(SystemExit):
    """The watch ends the training, because it was asked to stop at an anomaly."""


class StepHandler:
    """Decides what a step that has ended calls for, together with the other ranks, and has it done.

    Args:
        replaying: a block in which the watch does not look at the loop.
    """

    def __init__(
        self,
        responder: Responder,
        settings: WatchSettings,
        *,
        snapshots: Snapshots,
        requests: ReplayRequests,
        replaying: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.num_undone = 0
        """How many steps were undone."""
        self.complaint: str | None = None
        """Why a step could not be undone, if one could not."""
        self._responder = responder
        self._settings = settings
        self._snapshots = snapshots
        self._requests = requests
        self._replaying = replaying
        self._num_replays = 0
        self._generators: Generators | None = None

    def begin(self) -> None:
        """Take note that the first step begins."""
        if self._settings.on_anomaly == "skip":
            self._generators = Generators.now()

    def ask(self, step: int) -> None:
        """Ask the other ranks to replay this step together when it has ended: its loss is bad."""
        if num_ranks() > 1:
            self._requests.ask(step, at=step)

    def handle(self, tape: StepTape, anomalies: Sequence[Anomaly], *, is_complete: bool) -> None:
        """Record or investigate the step that has ended, and stop or undo it as the settings say."""
        seen = [anomaly for anomaly in anomalies if anomaly.kind != "exception"]
        wanted = tape.step if _raised_alone(anomalies) else self._step_to_investigate(tape.step, seen)
        if wanted is not None:
            is_spike = any(anomaly.kind == "spike" for anomaly in seen)
            self._investigate(wanted, tape, is_complete=is_complete and wanted == tape.step, is_spike=is_spike)
        elif tape.step in self._settings.recorded_steps and not seen:
            self._record(tape, is_complete=is_complete)
        if seen and self._settings.on_anomaly == "stop":
            raise TrainingStopped(1)
        if self._settings.on_anomaly == "skip":
            if _must_undo(seen):
                self._undo(tape)
            self._generators = Generators.now()

    def _step_to_investigate(self, step: int, anomalies: Sequence[Anomaly]) -> int | None:
        """Return the step to be replayed now, if any; several ranks go by what one of them asked for.

        A bad loss is known before the gradients are exchanged, so every rank sees the request when this step ends. What
        shows later is replayed when all have ended the step after.
        """
        if num_ranks() == 1:
            return step if anomalies else None
        wanted = self._requests.at(step)
        if anomalies and wanted is None:
            self._requests.ask(step, at=step + 1)
        return wanted

    def _investigate(self, step: int, open_tape: StepTape, *, is_complete: bool, is_spike: bool) -> None:
        if self._num_replays >= self._settings.most_replays:
            return
        self._num_replays += 1
        path = self._snapshots.path_to(step, among=[open_tape], earliest=True)
        if all_agree(f"investigate-{step}", _described(path)) and path is not None:
            with self._replaying():
                self._responder.investigate(step, open_tape, is_complete=is_complete)
                if is_spike:
                    self._responder.sort_spike(step, open_tape)

    def _record(self, tape: StepTape, *, is_complete: bool) -> None:
        path = self._snapshots.path_to(tape.step, among=[tape])
        if all_agree(f"record-{tape.step}", _described(path)) and path is not None:
            with self._replaying():
                self._responder.record(tape, is_complete=is_complete)
        else:
            self._responder.note_missing(tape)

    def _undo(self, tape: StepTape) -> None:
        with self._replaying():
            is_undone = self._responder.undo(tape, generators=self._generators)
        if is_undone:
            self.num_undone += 1
            self._snapshots.forget()
        else:
            self.complaint = self.complaint or f"step {tape.step} could not be undone: no snapshot leads to it."


def _raised_alone(anomalies: Sequence[Anomaly]) -> bool:
    """Say whether the step raised something a replay can show: memory that ran out is not asked for a second time.

    Where one of several ranks raises, the others may be anywhere: they cannot replay together.
    """
    raised = [anomaly.name for anomaly in anomalies if anomaly.kind == "exception"]
    return bool(raised) and num_ranks() == 1 and not {"OutOfMemoryError", "MemoryError"} & set(raised)


def _must_undo(anomalies: Sequence[Anomaly]) -> bool:
    """Say whether a step is to be undone; among several ranks only for what all of them see alike."""
    shared = ("gradient", "weight")
    return any(num_ranks() == 1 or anomaly.kind in shared for anomaly in anomalies)


def _described(path: tuple[Snapshot, list[StepTape]] | None) -> str:
    """Say from where to where a replay leads: ranks replay together only if that is the same on all."""
    return "nowhere" if path is None else f"{path[0].step} to {path[1][-1].step}"
