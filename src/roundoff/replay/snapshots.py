"""A ring of states and tapes from which any of the last steps can be rebuilt, within the memory of host and device."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from roundoff.record.structure import outermost_optimizers
from roundoff.replay.state import Training, TrainingState
from roundoff.replay.step_tape import StepTape
from roundoff.replay.swapping import local_part
from roundoff.words import size_text

_MAX_INTERVAL = 64
"""At most this many steps between two snapshots: a replay has to run through them."""
_FIRST_PART = 1 / 8
"""The first snapshot is kept to the end if it takes no more than this part of the memory."""


@dataclass(slots=True)
class Snapshot:
    """The state before a step, and the tapes of that step and the following ones."""

    step: int
    state: TrainingState
    tapes: list[StepTape] = field(default_factory=list)
    num_tape_bytes: int = 0
    _counted: set[int] = field(default_factory=set)

    def add(self, tape: StepTape) -> None:
        """Keep the tape of a step; a tensor that several steps use is one copy."""
        self.tapes.append(tape)
        self.num_tape_bytes += tape.num_generator_bytes
        for external in tape.external:
            if id(external) not in self._counted:  # none of them dies before this snapshot
                self._counted.add(id(external))
                self.num_tape_bytes += external.num_bytes


ReplayPath: TypeAlias = tuple[Snapshot, list[StepTape]]
"""Where a replay starts, and the steps it goes through; the last is the one that matters."""


class Snapshots:
    """Keeps the last two of the states copied every `interval` steps, and the tapes since the older one.

    Of small trainings the first state is kept as well: fixes are tried on weights that nothing has damaged yet.

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
        self.max_tape_bytes = memory_bytes // 4
        self._share = share
        self._ring: list[Snapshot] = []
        self._spare: TrainingState | None = None
        self._aside: ReplayPath | None = None
        self._first: Snapshot | None = None
        self._keeps = 2
        self._is_off = False
        self._num_state_bytes = 0
        self._num_tape_bytes = 0

    @property
    def is_off(self) -> bool:
        """Whether no state fits into the memory limit, so that nothing can be replayed."""
        return self._is_off

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
        """Return whether the state before this step should be copied."""
        if self._is_off:
            return False
        return not self._ring or step >= self._ring[-1].step + self.interval

    def take(self, step: int) -> None:
        """Copy the state before `step`, replacing the oldest copy."""
        if not self._ring and not self._fits():
            return
        if len(self._ring) >= self._keeps:
            oldest = self._ring.pop(0)
            if oldest.step == 0 and oldest.state.num_bytes + oldest.num_tape_bytes <= _FIRST_PART * self._memory_bytes:
                self._first = oldest
            else:
                self._spare = oldest.state
        if self._keeps == 1:
            self._drop_aside()
        state, self._spare = self._spare or TrainingState(), None
        state.take(self._training)
        self._ring.append(Snapshot(step, state))
        kept = [*self._ring, *([self._first] if self._first is not None else [])]
        self._num_state_bytes = sum(snapshot.state.num_bytes for snapshot in kept)

    def learn_cost(self, copy_seconds: float, step_seconds: float) -> None:
        """Set the interval so that copying stays within its share of the time."""
        if step_seconds > 0:
            wanted = math.ceil(copy_seconds / (self._share * step_seconds))
            self.interval = min(max(wanted, 1), _MAX_INTERVAL)

    def add(self, tape: StepTape) -> None:
        """Keep the tape of a step that closed; no step can be rebuilt across one that cannot be replayed."""
        if not self._ring:
            return
        self._ring[-1].add(tape)
        if tape.can_be_replayed:
            self._drop_aside()
        self._num_tape_bytes = sum(snapshot.num_tape_bytes for snapshot in self._ring)
        if tape.why_not_replayable is not None:
            self.forget()
        elif self._num_tape_bytes > self.max_tape_bytes:
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

    def set_aside(self) -> None:
        """Keep the last step that can be rebuilt for experiments, and start over at the next: taping pauses."""
        tapes = [tape for snapshot in self._ring for tape in snapshot.tapes]
        self._aside = self.path_to(tapes[-1].step, among=[]) if tapes else None
        if self._aside is None:
            self.forget()
        self._ring.clear()

    def _drop_aside(self) -> None:
        if self._aside is not None:
            self._spare, self._aside = self._aside[0].state, None

    @property
    def has_aside(self) -> bool:
        """Whether a step from before the pause is kept."""
        return self._aside is not None

    def path_to_last(self) -> ReplayPath | None:
        """Return what leads to the last step that can be rebuilt, from before the pause if nothing is taped."""
        tapes = [tape for snapshot in self._ring for tape in snapshot.tapes]
        path = (self.path_to(tapes[-1].step, among=[]) if tapes else None) or self._aside
        return path if path is not None and all(tape.can_be_replayed for tape in path[1]) else None

    def path_from_first(self) -> ReplayPath | None:
        """Return the first state and the steps that were taped from it on, if they are still there."""
        first = self._first or (self._ring[0] if self._ring and self._ring[0].step == 0 else None)
        can_be_played = first is not None and first.tapes and all(tape.can_be_replayed for tape in first.tapes)
        return (first, first.tapes) if first is not None and can_be_played else None

    def release(self, *, keeps_first: bool = False) -> None:
        """Let go of everything, or of all but the first state, so that its memory can be freed."""
        self._aside = self._spare = None
        self._ring.clear()
        self._first = self._first if keeps_first else None
        self._num_state_bytes = self._first.state.num_bytes if self._first is not None else 0
        self._num_tape_bytes = 0

    def path_to(self, step: int, *, among: list[StepTape], earliest: bool = False) -> ReplayPath | None:
        """Return a snapshot to start from, the latest or the earliest, and the tapes from there to `step`.

        `among` are tapes that were not added yet. None if no snapshot leads to the step without a gap.
        """
        tapes = [tape for snapshot in self._ring for tape in snapshot.tapes] + among
        by_step = {tape.step: tape for tape in tapes if tape.can_be_replayed}
        for snapshot in self._ring if earliest else reversed(self._ring):
            needed = range(snapshot.step, step + 1)
            if needed and all(number in by_step for number in needed):
                path = [by_step[number] for number in needed]
                if all(reached >= snapshot.step for tape in path for reached in tape.reached_steps):
                    return snapshot, path
        return None

    def _fits(self) -> bool:
        """Decide how many snapshots fit, together with the state and the gradients of a replay."""
        one = self._training.num_state_bytes
        replay = one + self._training.num_bytes
        if 2 * one + replay > self._memory_bytes:
            self._keeps = 1
            self.note = f"one snapshot instead of two: a state takes about {size_text(one)}"
        if one + replay > self._memory_bytes:
            self._is_off = True
            self.note = (
                f"no snapshots, so no replay: a snapshot and a replay take about {size_text(one + replay)}, "
                f"and --snapshot-memory allows {size_text(self._memory_bytes)}"
            )
        return not self._is_off


def free_bytes(device: torch.device) -> int | None:
    """Return how much memory a device has left, with what torch holds there for later use; None if it does not say."""
    queries = (getattr(torch.accelerator, "get_memory_info", None), _of_module(device, "mem_get_info"))
    for query in queries:
        with contextlib.suppress(Exception):  # what a backend that lacks it raises is its own choice
            free, _ = query(device)  # type: ignore[misc]
            return int(free) + max(_statistic("memory_reserved", device) - _statistic("memory_allocated", device), 0)
    return None


def why_no_room(training: Training) -> str | None:
    """Return why the devices have no room for a second copy of the state; None if they do, or that is unknown."""
    needed: Counter[torch.device] = Counter()
    for x in training.tensors():
        needed[x.device] += local_part(x).nbytes * (2 if x.requires_grad else 1)  # it gets a gradient
    for optimizer in outermost_optimizers(training.optimizers):
        for state in optimizer.state.values():
            for x in state.values() if isinstance(state, dict) else ():
                if isinstance(x, Tensor):
                    needed[x.device] += local_part(x).nbytes
    for device, num_bytes in needed.items():
        if device.type in ("cpu", "meta") or (free := free_bytes(device)) is None:
            continue
        # What a step needs for itself is what was in use at the peak and is not now.
        of_step = max(_statistic("max_memory_allocated", device) - _statistic("memory_allocated", device), 0)
        if num_bytes + of_step > free:
            return f"a replay takes about {size_text(num_bytes + of_step)} of {device}, and {size_text(free)} are free"
    return None


def _of_module(device: torch.device, name: str) -> Callable[[torch.device], Any] | None:
    """Return a function of what torch knows a device's kind by, such as `torch.cuda`."""
    return getattr(getattr(torch, device.type, None), name, None)


def _statistic(name: str, device: torch.device) -> int:
    with contextlib.suppress(Exception):
        return int(getattr(torch.accelerator, name)(device))
    return 0
