"""What the watch may cost and has cost, and how closely each step is watched for that: in full, taped, or quietly."""

from __future__ import annotations

import time

import torch

from roundoff.replay.own_time import own_seconds
from roundoff.replay.rank_consensus import num_ranks
from roundoff.replay.snapshots import Snapshots
from roundoff.replay.state import Training
from roundoff.watch.settings import WatchSettings

_FREE_SECONDS_PER_STEP = 60e-6
"""Even a step too short for its share to pay for two empty hooks may be watched for this long."""
_UNTIMED_SECONDS = 40e-6
"""What a step costs around the hooks that time themselves: torch's calls of them, wrappers, cold caches; measured."""
_START_SECONDS = 1.5
"""The steps that are watched in full may cost this much together, however short they are themselves."""
_TAPING_CREDIT_SECONDS = 1.5
"""Taping may take this long once beyond the share: of short trainings, every step can be replayed."""

_MIN_FULL_STEPS = 4
"""Rules need the facts of this many steps, whatever they cost: for example, gradients carried over twice."""
_FIRST_SHARE = 0.7
"""Steps are watched in full until that has cost this share of what they took themselves, or as much as a start may."""
_FIRST_NUMBERS = 300_000_000
"""Fewer steps of a large model are watched in full: as many as have this many parameters together."""
_TAPED_STEPS = 200
"""This many first steps are taped, as long as that costs little."""
_EARLY_SHARE = 0.05
"""Little is this share of what the training took so far."""
_TAPING_PART = 0.75
"""The part of the budget that snapshots and taping may take."""
_ALERT_STEPS = 200
"""After an anomaly, this many steps are taped whatever it costs."""
_PHASE_STEPS, _MAX_PHASES = 20, 4
"""This many steps are taped whatever it costs when a model joins after the start, and this often."""
_QUIET_STEPS, _MAX_QUIET_STEPS, _QUIET_SECONDS = 16, 64, 0.05
"""After this many steps with few checks, the budget is checked again for more. If steps are short, that waits longer:
a step that is not quiet may cost as much as the training's own."""
_MIN_BETWEEN_TAPED, _MAX_BETWEEN_TAPED = 256, 4096
"""From the first of the quiet steps of several ranks that are taped again to the next; it grows with the training."""
_MODULE_SECONDS = 8e-6
"""What following one more module costs, about."""
_INNER_SHARE = 0.005
"""Modules inside others are followed, for the sake of reports of crashes and hangs, if that costs less than this."""
_STRETCH_SECONDS = 0.25
_MAX_STRETCH, _MAX_IDLE = 64.0, 4.0
"""How often it is measured how busy the machine is, and how much that and other waiting may count."""

START = "start"
TAPING = "taping"
FIRST_STEPS = "first steps"
REPLAYS = "replays"
REST = "the rest"


class TimeBudget:
    """Adds up the time that roundoff takes and says whether there is room for more.

    All time is part of the total. Time for what has to be done at any price (the first steps, replays, probes) is set
    aside under a name of its own: it does not use up the share.

    Args:
        share: of the training's time, 0.02 for 2 %.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._is_first = True
        self._aside: dict[str, float] = {}
        self._began_process = self._began = time.perf_counter()
        self._began_training = (self._began, own_seconds(), time.process_time())
        self._stretch = (self._began, 1.0)
        self._ended: float | None = None
        self._replays = 0.0
        self._start = 0.0
        self._spent = 0.0
        self._aside_before = 0.0
        self._num_steps = 0
        self._of_task: dict[str, float] = {}
        self._last_of_task: dict[str, float] = {}

    @property
    def spent_seconds(self) -> float:
        """What was spent within the share since the first steps ended."""
        return self._spent

    @property
    def total_seconds(self) -> float:
        """What was spent on everything, since the script began."""
        return self._spent + sum(self._aside.values())

    @property
    def seconds(self) -> float:
        """How long it is since the start, until the end of everything."""
        return (self._ended or time.perf_counter()) - self._began_process

    @property
    def training_seconds(self) -> float:
        """How long the training itself has taken since the first steps ended."""
        elapsed = (self._ended or time.perf_counter()) - self._began
        return max(elapsed - self._spent - sum(self._aside.values()) + self._aside_before, 0.0)

    @property
    def cost(self) -> float:
        """What everything together has cost, as a share of the time that the training itself has taken."""
        total = self._start + self.total_seconds
        own = max(self.seconds - total, 0.0)
        return total / own if own > 0 else 0.0

    def parts(self) -> dict[str, float]:
        """Return what the total was spent on, the largest first, and the rest last."""
        start = {START: self._start} if self._start else {}
        largest_first = sorted((start | self._aside).items(), key=lambda item: -item[1])
        return {**dict(largest_first), REST: self._spent}

    def count_start(self, began: float, *, of_script: float = 0.0) -> None:
        """Count what was done since `began` and before the script: our own imports, and the start of the watch.

        Args:
            began: the time, as `time.perf_counter` says it.
            of_script: the part of it that the script would have needed itself, to import torch.
        """
        self._start = max(time.perf_counter() - began - of_script, 0.0)
        self._began_process = min(began, self._began_process)

    def steps_within(self, seconds: float) -> int:
        """Return about how many steps the training makes in this time; 0 as long as too few were seen to say."""
        if self._num_steps < _QUIET_STEPS:
            return 0
        return int(seconds * self._num_steps / max(self.training_seconds, 1e-9))

    def begin_training(self) -> None:
        """Note that the first step begins."""
        self._began_training = (time.perf_counter(), own_seconds(), time.process_time())

    def is_within_start(self, share: float) -> bool:
        """Return whether all costs so far are at most what the start of a training may cost, or a share of its time.

        Replays have limits of their own.
        """
        began, _, began_cpu = self._began_training
        seconds = max(time.perf_counter() - began, 1e-9)
        # A busy disk is waited for as well; but so are loaders and environments in other processes.
        idle = seconds / max(time.process_time() - began_cpu, seconds / _MAX_IDLE)
        own = max(seconds - self.total_seconds, 0.0)
        return self.total_seconds - self._replays <= max(
            _START_SECONDS * max(self._stretch_of_time(), idle), share * own
        )

    def _stretch_of_time(self) -> float:
        """Return how much longer everything takes because others use the machine: seconds that are granted grow by it.

        Otherwise a busy machine would leave fewer facts, and the diagnosis would find less.
        """
        now, (looked, stretch) = time.perf_counter(), self._stretch
        if now - looked >= _STRETCH_SECONDS:
            began, began_own, _ = self._began_training
            stretch = min(max((now - began) / max(own_seconds() - began_own, 1e-9), 1.0), _MAX_STRETCH)
            self._stretch = (now, stretch)
        return stretch

    def has_taped_cheaply(self, share: float) -> bool:
        """Return whether taping since the first steps cost at most its credit, or a share of the training's time."""
        credit = _TAPING_CREDIT_SECONDS * self._stretch_of_time()
        return self._of_task.get(TAPING, 0.0) <= max(credit, share * self.training_seconds)

    def end_first_steps(self) -> None:
        """Count from now on against the share: the steps that are watched in full are over."""
        self._aside[FIRST_STEPS] = self._aside.get(FIRST_STEPS, 0.0) + self._spent
        self._is_first = False
        self._spent = 0.0
        self._of_task.clear()
        self._num_steps = 0
        self._began = time.perf_counter()
        self._aside_before = sum(self._aside.values())

    def end(self) -> None:
        """Stop the clock: everything is done."""
        if self._is_first:
            self.end_first_steps()
        self._ended = time.perf_counter()

    def count_step(self, seconds: float = 0.0) -> None:
        """Note that a step has ended, and the part of its cost that was not passed to `add`."""
        self._num_steps += 1
        self._spent += seconds

    def add(self, seconds: float) -> None:
        """Count time that one of our hooks took."""
        self._spent += seconds

    def set_aside(self, seconds: float, name: str, *, is_in_hook: bool = True) -> None:
        """Count time under a name of its own.

        Args:
            seconds: how long it took.
            name: what it was for.
            is_in_hook: whether that time is also passed to `add`.
        """
        if name == REPLAYS:
            self._replays += seconds
        name = FIRST_STEPS if self._is_first and is_in_hook else name
        self._aside[name] = self._aside.get(name, 0.0) + seconds
        if is_in_hook:
            self._spent -= seconds

    def spend(self, seconds: float, task: str) -> None:
        """Count time that was spent on a task, and was or will be passed to `add`."""
        self._of_task[task] = self._of_task.get(task, 0.0) + seconds
        self._last_of_task[task] = seconds

    def has_room(self, task: str, *, part: float, wanted: float | None = None) -> bool:
        """Return whether a task that may take `part` of the budget may be done once more.

        Args:
            task: its name.
            part: its part of the budget.
            wanted: the seconds that it will take; by default as many as the last time.
        """
        if self._share <= 0:
            return False
        on_task = self._of_task.get(task, 0.0) + (self._last_of_task.get(task, 0.0) if wanted is None else wanted)
        stretch = self._stretch_of_time()
        credit = min(self._of_task.get(TAPING, 0.0), _TAPING_CREDIT_SECONDS * stretch)
        if task == TAPING:
            if on_task <= _TAPING_CREDIT_SECONDS * stretch:
                return True
            on_task -= credit
        share = self._share * self.training_seconds - _UNTIMED_SECONDS * self._num_steps
        allowed = max(share, _FREE_SECONDS_PER_STEP * self._num_steps * stretch)
        more = on_task - self._of_task.get(task, 0.0) + (credit if task == TAPING else 0.0)
        return on_task <= part * allowed and self._spent - credit + more <= allowed


class StepSchedule:
    """Decides how closely each step is watched: the first ones in full, later ones taped within the budget, or quietly.

    Several ranks can only replay what all of them have taped, so there the number of the step decides, not its cost.
    """

    def __init__(self, settings: WatchSettings, budget: TimeBudget) -> None:
        self._settings = settings
        self._budget = budget
        self.full_steps = settings.full_steps
        """The first step that is not watched in full."""
        self.quiet_until = 0
        """The first step at which more than in quiet steps may be done again."""
        self.follows_inner = True
        """Whether modules inside others are followed in steps that are taped."""
        self.taped_step_seconds = 0.0
        """What the last step that was taped has cost."""
        self._alert = range(0)
        self._num_phases = 0

    def ends_full_steps(self, num_steps: int, *, is_taped: bool, training: Training) -> bool:
        """Return whether this was the last step to be watched in full: enough of them were, or they cost too much."""
        if num_steps >= self.full_steps:
            return num_steps == self.full_steps
        if num_ranks() > 1:
            return False
        if num_steps <= max(self._settings.recorded_steps, default=0) and is_taped:
            return False  # this one is to be recorded
        is_expensive = num_steps >= _MIN_FULL_STEPS and not self._budget.is_within_start(_FIRST_SHARE)
        return is_expensive or num_steps * sum(x.numel() for x in training.tensors()) > _FIRST_NUMBERS

    def end_full_steps(self, num_steps: int, *, num_module_calls: int) -> None:
        """Watch further steps within the budget only; `num_module_calls` is how many modules a step calls."""
        seconds, budget = num_module_calls * _MODULE_SECONDS, self._budget
        self.follows_inner = self._settings.ops or seconds <= _INNER_SHARE * budget.training_seconds / num_steps
        self.full_steps = num_steps
        budget.end_first_steps()

    def is_taped(self, step: int, snapshots: Snapshots) -> bool:
        """Return whether to tape a step that is not watched in full: it must be taped, or the budget allows it."""
        if self._settings.on_anomaly == "skip" or step in self._alert:
            return True
        if num_ranks() > 1:
            between = min(max(1 << step.bit_length() >> 4, _MIN_BETWEEN_TAPED), _MAX_BETWEEN_TAPED)
            return step < _TAPED_STEPS or step % between < _QUIET_STEPS
        if step < _TAPED_STEPS and self._budget.has_taped_cheaply(_EARLY_SHARE):
            return True
        wanted = self.taped_step_seconds * snapshots.interval
        return not snapshots.is_off and self._budget.has_room(TAPING, part=_TAPING_PART, wanted=wanted)

    def begin_quiet(self, step: int) -> None:
        """Follow this step and some more quietly, the same on every rank."""
        length = _QUIET_STEPS
        if num_ranks() == 1:
            length = min(max(self._budget.steps_within(_QUIET_SECONDS), _QUIET_STEPS), _MAX_QUIET_STEPS)
        self.quiet_until = step - step % length + length

    def end_quiet(self) -> None:
        """Follow the next step as one that is not quiet."""
        self.quiet_until = 0

    def be_alert(self, step: int) -> None:
        """Tape the steps that follow one with an anomaly; several ranks begin later, when all of them know of it."""
        self.end_quiet()
        if num_ranks() == 1:
            self._alert = range(step, step + _ALERT_STEPS + 1)
        elif step not in range(self._alert.start - 2 * _QUIET_STEPS, self._alert.stop):
            start = step - step % _QUIET_STEPS + 2 * _QUIET_STEPS
            self._alert = range(start, start + _ALERT_STEPS)

    def begin_phase(self, step: int) -> None:
        """Tape some steps with a model that joins later: its loss functions are looked at, and probes made, as well."""
        is_late = step >= self.full_steps and step not in self._alert and torch.is_grad_enabled()
        if is_late and self._num_phases < _MAX_PHASES and num_ranks() == 1:
            self._num_phases += 1
            self._alert = range(step, step + _PHASE_STEPS)
            self.end_quiet()
