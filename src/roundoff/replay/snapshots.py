"""A ring of states and tapes from which any of the last steps can be rebuilt, within a memory limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from roundoff.replay.state import Training, TrainingState
from roundoff.replay.step_tape import StepTape

_MAX_INTERVAL = 64
"""At most this many steps between two snapshots: a replay has to run through them."""


@dataclass(slots=True)
class Snapshot:
    """The state before a step, and the tapes of that step and the following ones."""

    step: int
    state: TrainingState
    tapes: list[StepTape] = field(default_factory=list)


class Snapshots:
    """Keeps the last two of the states copied every `interval` steps, and the tapes since the older one.

    The interval follows from what a copy costs: it grows until copying takes at most its share of the training's time.

    Args:
        training: whose state is copied.
        memory_bytes: the limit for copies and tapes together.
        share: the share of the training's time that copying may take.
    """

    def __init__(self, training: Training, *, memory_bytes: int, share: float = 0.005) -> None:
        self.interval = 1
        self.note: str | None = None
        """What the user should know: the model is too large for two snapshots, or for any."""
        self._training = training
        self._memory_bytes = memory_bytes
        self._share = share
        self._ring: list[Snapshot] = []
        self._spare: TrainingState | None = None
        self._keeps = 2
        self._is_off = False
        self._num_state_bytes = 0
        self._num_tape_bytes = 0

    @property
    def latest(self) -> Snapshot | None:
        """The snapshot that the open step belongs to."""
        return self._ring[-1] if self._ring else None

    @property
    def first_step(self) -> int | None:
        """The earliest step that can be rebuilt."""
        return self._ring[0].step if self._ring else None

    @property
    def num_bytes(self) -> int:
        """The size of states and tapes when the last of them was added."""
        return self._num_state_bytes + self._num_tape_bytes

    def is_due(self, step: int) -> bool:
        """Say whether the state before this step should be copied."""
        if self._is_off:
            return False
        return not self._ring or step >= self._ring[-1].step + self.interval

    def take(self, step: int) -> None:
        """Copy the state before `step`, replacing the oldest copy."""
        if not self._ring and not self._fits():
            return
        if len(self._ring) >= self._keeps:
            self._spare = self._ring.pop(0).state
        state, self._spare = self._spare or TrainingState(), None
        state.take(self._training)
        self._ring.append(Snapshot(step, state))
        self._num_state_bytes = sum(snapshot.state.num_bytes for snapshot in self._ring)

    def learn_cost(self, copy_seconds: float, step_seconds: float) -> None:
        """Set the interval so that copying stays within its share of the time."""
        if step_seconds > 0:
            wanted = math.ceil(copy_seconds / (self._share * step_seconds))
            self.interval = min(max(wanted, 1), _MAX_INTERVAL)

    def add(self, tape: StepTape) -> None:
        """Keep the tape of a step that closed; no step can be rebuilt across one that cannot be replayed."""
        if not self._ring:
            return
        self._ring[-1].tapes.append(tape)
        self._num_tape_bytes = self._tape_bytes()
        if tape.why_not_replayable is not None:
            self.forget()
        elif self._num_tape_bytes > self._memory_bytes // 2:
            self.interval = max(1, self.interval // 2)
            if len(self._ring) > 1:
                self._spare = self._ring.pop(0).state
            else:
                self.forget()

    def forget(self) -> None:
        """Start over at the next step: what was kept no longer leads to the present state."""
        if self._ring:
            self._spare = self._ring[-1].state
        self._ring.clear()

    def drop_references(self) -> None:
        """Let go of a training that has ended, so that its memory can be freed."""
        self._ring.clear()
        self._spare = None

    def path_to(
        self, step: int, *, among: list[StepTape], earliest: bool = False
    ) -> tuple[Snapshot, list[StepTape]] | None:
        """Return a snapshot to start from, the latest or the earliest, and the tapes from there to `step`.

        `among` are tapes that were not added yet. None if no snapshot leads to the step without a gap.
        """
        tapes = [tape for snapshot in self._ring for tape in snapshot.tapes] + among
        by_step = {tape.step: tape for tape in tapes if tape.why_not_replayable is None}
        for snapshot in self._ring if earliest else reversed(self._ring):
            needed = range(snapshot.step, step + 1)
            if needed and all(number in by_step for number in needed):
                path = [by_step[number] for number in needed]
                if all(reached >= snapshot.step for tape in path for reached in tape.reached_steps):
                    return snapshot, path
        return None

    def _tape_bytes(self) -> int:
        seen = {
            id(external): external.num_bytes
            for snapshot in self._ring
            for tape in snapshot.tapes
            for external in tape.external
        }
        return sum(seen.values())

    def _fits(self) -> bool:
        """Decide how many snapshots fit: a state is the weights and about twice as much optimizer state."""
        one = 3 * self._training.num_bytes
        if 2 * one > self._memory_bytes:
            self._keeps = 1
            self.note = f"one snapshot instead of two: a state takes about {one / 2**20:.0f} MB"
        if one > self._memory_bytes:
            self._is_off = True
            self.note = (
                f"no snapshots, so no replay: a state takes about {one / 2**20:.0f} MB, "
                f"and --snapshot-memory allows {self._memory_bytes / 2**20:.0f} MB"
            )
        return not self._is_off
