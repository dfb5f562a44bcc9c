"""One training under watch: what the watch does at each hook of the loop, and once per step."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from typing import Any, Literal, NoReturn, cast
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.kernels.host_copies import HostCopies
from roundoff.progress import announcing
from roundoff.record.identity import IdentityDict
from roundoff.record.loop.calls import LoopCall, LoopCallKind, learning_rates, unread_detail
from roundoff.record.loop.follower import BackwardCall, LoopFollower, ModuleCall, StepAttempt, is_in_training
from roundoff.record.loop.observer import FollowedModules, observing_loop
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import PHASES
from roundoff.record.source_lines import shown_path
from roundoff.replay.investigator import Investigator, TrainingStopped
from roundoff.replay.loop_taping import LoopTaping, why_not_replayable
from roundoff.replay.lost_numbers import LostNumbersFinder
from roundoff.replay.own_time import own_seconds
from roundoff.replay.rank_consensus import num_ranks
from roundoff.replay.replayed_step import ReplayedStep
from roundoff.replay.snapshots import Snapshots, why_no_room
from roundoff.replay.state import Training
from roundoff.replay.tape_recorder import TapeRecorder
from roundoff.report.tensorboard import TensorBoard
from roundoff.runs import (
    Anomaly,
    CallDetail,
    CallKind,
    EpochDetail,
    FlightRecorder,
    ForwardDetail,
    Gap,
    NoDetail,
    ReshapeProbe,
    RunWriter,
    StepDetail,
    ZeroGradDetail,
)
from roundoff.torch_private import compiler_is_loaded, in_function_transform, is_transformed, separate_step_hooks
from roundoff.watch.budget import REPLAYS, TAPING, StepSchedule, TimeBudget
from roundoff.watch.detector import AnomalyDetector, exception_detail, raising_module
from roundoff.watch.facts.collector import FactCollector
from roundoff.watch.facts.data_loaders import LoaderNumbers, copied_generators, dataset_content
from roundoff.watch.facts.evaluation_trail import EvaluationTrail
from roundoff.watch.facts.loop_values import LoopValues
from roundoff.watch.facts.step_batch import is_loss
from roundoff.watch.facts.training_states import TrainingStates
from roundoff.watch.facts.uncleared_gradients import UnclearedGradients
from roundoff.watch.journal import StepJournal
from roundoff.watch.probes.fix_trials import try_fixes
from roundoff.watch.probes.last_step import LastStepProbes
from roundoff.watch.process.child_trainings import noticing_children
from roundoff.watch.process.host_memory import default_memory_bytes
from roundoff.watch.process.memory_growth import MemoryFollower
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watch_part import WatchPart
from roundoff.watch.watched_run import WatchedRun

_SNAPSHOT_INTERVAL_OF_RANKS = 8
"""Steps between the snapshots of several ranks: they must be those of the same steps."""
_SNAPSHOT_INTERVAL_OF_DEVICES = 8
"""The fewest steps between snapshots where losses are read late."""
_KEPT_COPY_BYTES = 32 * 2**20
"""Page-locked memory that is kept for what is measured on accelerators."""

HOOKED_SECONDS = 2e-6
"""About what torch takes to call the hooks of one module."""
_MAX_HEARD_EVALUATIONS = 64
"""In a step that is not taped, the losses of at most this many forwards without gradients are looked for."""
_MAX_RESHAPED = 8
_MIN_TAPE_BYTES = 16 * 2**20
_MAX_STARTS = 4
"""Forwards after the first one, and before any backward, each of which may be the real beginning of the first step."""

_FREQUENT: frozenset[LoopCallKind] = frozenset({"zero_grad", "clip", "scheduler"})
"""Calls that are not announced while nothing is taped."""


class WatchState(Enum):
    """What a watch is doing."""

    FOLLOWING = "following the loop"
    HANDLED = "following the loop; what the open step called for has been done"
    REPLAYING = "playing a step again: what the loop seems to do is our own doing"
    STOPPED = "failed: steps are counted, and nothing else"


class Watch(WatchedRun, LoopFollower):
    """Follows the loop of a training: writes its calls and metrics, keeps snapshots, has bad steps investigated."""

    opens_with_evaluation = False  # a replay of the step would have to begin with it

    def __init__(
        self,
        writer: RunWriter,
        settings: WatchSettings,
        *,
        sites: Sites,
        flight: FlightRecorder,
        board: TensorBoard | None = None,
    ) -> None:
        LoopFollower.__init__(self, sites=sites)
        WatchedRun.__init__(self, writer, TimeBudget(settings.budget))
        self.state = WatchState.FOLLOWING
        self.training_failed = False
        """To be set where the training fails without an exception that leaves the block."""
        self.at_step: tuple[int, Callable[[ReplayedStep | str], None]] | None = None
        """A step, and what is called with it, or with why it cannot be replayed, when it ends; then the script ends."""
        self._settings = settings
        self._flight = flight
        self._board = board
        self.took = self._budget.add  # type: ignore[method-assign]  # what our hooks cost; called at each of them
        self._training = Training()
        memory_bytes = default_memory_bytes() if settings.snapshot_bytes is None else settings.snapshot_bytes
        self._snapshots = Snapshots(self._training, memory_bytes=memory_bytes)
        self._journal = StepJournal(writer, self.clock, board=board)
        copies = self._copies = HostCopies(kept_bytes=_KEPT_COPY_BYTES)
        self._detector = AnomalyDetector(writer, sites=sites, budget=self._budget, copies=copies)
        self._facts = FactCollector(
            writer, self._training, sites=sites, budget=self._budget, copies=copies, kept_batches=settings.kept_batches
        )
        self._states = TrainingStates(writer, self._training, budget=self._budget)
        self._uncleared = UnclearedGradients()
        self._memory: MemoryFollower | None = None
        self._tape = TapeRecorder(
            is_state=self._training.is_state,
            on_forward=self.function_forward,
            max_bytes=max(memory_bytes // 4, _MIN_TAPE_BYTES),
        )
        self._taping = LoopTaping(self._tape, self._snapshots, self.clock)
        self._schedule = StepSchedule(settings, self._budget)
        self._is_quiet_part = False
        """Whether the running backward or optimizer's step is followed by the `quiet_` methods."""
        self._num_module_calls = 0
        self._num_heard_evaluations = 0
        self._tape_seconds = 0.0
        self._spent_at_start = 0.0
        self._has_ranks = False
        self._step_began = 0.0
        self._num_early_forwards = 0
        self._opened_by_newcomer = False
        """Whether the open step began with a call of a model that was not known before."""
        self._tape.on_loss = self._see_loss_function
        self._tape.lost_numbers = LostNumbersFinder(waits=False)
        self._running_sums = LostNumbersFinder(waits=False, only_sums=True)
        self._tape.on_scalar = self._detector.see_scalar
        self._tape.on_loop_value = self._see_loop_value
        self._tape.on_draw = self._see_draw
        self._tape.on_output = self._see_output
        self._tape.on_reshape = self._see_reshape
        self._reshaped: set[tuple[str, int]] = set()
        """Lines that gave a tensor the shape of a permuted one."""
        self._trail = EvaluationTrail()
        self._given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        """What the model that is running was given by the loop."""
        self._loop_values = LoopValues(writer)
        self._investigator = Investigator(
            writer,
            training=self._training,
            sites=sites,
            snapshots=self._snapshots,
            replaying=self.replaying,
            on_anomaly=settings.on_anomaly,
            recorded_steps=settings.recorded_steps,
            max_replays=settings.max_replays,
        )
        self._in_models = self._part("models and optimizers")
        self._in_replays = self._part("replays", on_failure=self._leave_replays)
        self._in_checks = self._part("checks of losses, gradients and weights")
        self._in_facts = self._part("facts about models and batches")
        self._in_states = self._part("hashes of saved states")
        self._in_trail = self._part("what the loop computes from outputs")
        self._in_journal = self._part("calls and metrics")
        self._in_memory = self._part("measurements of memory")
        self._num_groups: IdentityDict[Optimizer, int] = IdentityDict()
        self._named: tuple[ref[Optimizer], str] | None = None
        """An optimizer and its name."""
        self._held: list[Any] = []
        """Models and optimizers that must not die before the next step; see `_end_attempt`."""
        self._stepping: tuple[Optimizer, StepDetail] | None = None
        """The optimizer that steps, and its line, while it does."""
        self._is_in_function = False
        """Whether the last step that was taped ran in a function of the script."""
        self._stepped_in_backward = False
        """Whether a hook on a gradient has made an optimizer step in the running backward."""
        self._awaits_buffers = False
        self._has_buffers: IdentityDict[nn.Module, bool] = IdentityDict()
        self._loaders = LoaderNumbers()

    def _part(self, name: str, on_failure: Callable[[str], None] | None = None) -> WatchPart:
        return WatchPart(name, self._writer, step=lambda: self.clock.step, on_failure=on_failure)

    def _leave_replays(self, reason: str) -> None:
        """Give up replays, as do the other ranks: no rank can replay alone."""
        self._investigator.leave(f"gave up replays at step {self.step} ({reason})")
        self._snapshots.release()
        self._tape.takes_notes = False

    @property
    def num_undone(self) -> int:
        """How many steps were undone, with `on_anomaly="skip"`."""
        return self._investigator.num_undone

    @property
    def anomalies(self) -> list[Anomaly]:
        """What was seen so far that cannot be right."""
        return self._detector.anomalies

    @property
    def gaps(self) -> list[Gap]:
        """What was not watched, also where that could not be written into the run."""
        found = [*self._gaps, *([] if self._investigator.gap is None else [self._investigator.gap])]
        if self._writer.stopped is not None:
            found.append(Gap(kind="recording", why=self._writer.stopped, rank=self._writer.rank))
        return found

    @property
    def is_fully_watched(self) -> bool:
        """Whether everything is looked at in the open step, whatever it costs."""
        return self.clock.step < self._schedule.full_steps or self._settings.every_step

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Add an optimizer before its first step."""
        self._training.add_optimizer(optimizer)

    def note_exception(self, error: BaseException) -> None:
        """Note an exception that ended the training, with the site and phase in which it was raised."""
        if isinstance(error, Exception) and self.state is not WatchState.STOPPED:
            if self._in_checks(self._detector.read_late, waits=True):  # it may be the reason
                self._resume()
            module = raising_module(error)
            site = None if module is None else self.sites.names[self.sites.of_module(module, 0)]
            when = self._when()
            self._detector.note(
                "exception",
                phase=PHASES[self.clock.phase] if when == "in" else None,
                name=type(error).__name__,
                detail=exception_detail(error, site=site, when=when),
            )

    def _when(self) -> Literal["before", "in", "after"]:
        """Return where the loop is: before its first step, in a step, or after one and before the next."""
        if not self.is_open and not self.num_steps:
            return "before"
        return "after" if self.clock.num_attempts and self.clock.is_idle else "in"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Follow the loop inside the block, and close the run at its end."""
        status: Literal["finished", "failed"] = "failed"
        try:
            with observing_loop(self), noticing_children(self.folder, rank=self.rank):
                self._tape.release()
                try:
                    yield
                    status = "failed" if self.training_failed else "finished"
                finally:
                    self._finish()
        finally:
            self._tape.hold()
            self._tape.new_step(self.clock.step)
            self._snapshots.release()
            self._held = []
            self._writer.close(status=status)
            self.has_ended = True

    def failed(self, error: Exception) -> None:
        """Stop watching, and say so in one line; the training goes on."""
        if self.state is WatchState.STOPPED:
            return
        self.state = WatchState.STOPPED
        self._tape.hold()
        reason = f"{type(error).__name__}: {error}"
        self._investigator.leave(f"stopped watching at step {self.step} ({reason})")
        self._note_gap(Gap(kind="watching", step=self.step, why=reason, rank=self._writer.rank))
        self._writer.note(f"Watching stopped at step {self.step}: {reason}")
        if self._writer.stopped is None:  # otherwise the writer has said so
            self._writer.say(f"stopped watching at step {self.step}; the training goes on. Why: {reason}")

    # -- once a step ---------------------------------------------------------------------------------------------------

    def step_opened(self, module: nn.Module | None) -> None:
        """Take a snapshot if one is due, before anything of the step has been computed."""
        self._held = []
        self._tape.follows_outputs = False
        if self.is_quiet and self._stays_quiet(module):
            self._tape.is_between = False
            return
        self.is_quiet = self._is_quiet_part = False
        self._spent_at_start = self._budget.spent_seconds
        if self.is_fully_watched:
            self._step_began = own_seconds()
        is_first = not self.clock.step and self._num_early_forwards <= _MAX_STARTS
        if is_first:
            self._move_to_own_folder()
        is_inside_transform = in_function_transform()  # then the models hold wrappers of other tensors
        is_new = module is not None and not is_inside_transform and self._in_models(self._training.add_model, module)
        self._opened_by_newcomer = bool(is_new)
        if is_new or self._in_facts(self._facts.has_thawed, self.clock.step):
            self.leaves = None  # its loss may reach other ones
            self._schedule.begin_phase(self.clock.step)
        if is_first:
            self._in_models(self._training.find_optimizers)
        self._in_replays(self._tape.begin)
        if is_first:
            self._begin_training()
        if self.is_fully_watched and module is not None and (why := why_not_replayable(module)) is not None:
            self._tape.step.why_not_replayable = why
        if is_inside_transform:
            self._snapshots.forget()
        else:
            self._in_replays(self._choose_taping)
        self.is_quiet &= not is_new
        if (self._states.awaits or self._states.num_followed or is_first) and not is_inside_transform:
            self._in_states(self._states.step_opened, self.clock.step)
            self.is_quiet &= self._has_ranks or not self._states.num_followed  # all ranks are quiet in the same steps

    def _stays_quiet(self, module: nn.Module | None) -> bool:
        """Return whether this step is followed as little as the one before."""
        is_known = module is None or module in self._training.models
        if not is_known or self.clock.step >= self._schedule.quiet_until or in_function_transform():
            return False
        self._num_heard_evaluations = 0
        self._tape.hears_losses = False
        self.followed_modules = FollowedModules.FIRST
        return True

    def _choose_taping(self) -> None:
        """Take a snapshot and tape the steps from here on if they must be, or if the budget allows it.

        Steps from one snapshot to the next are taped all or none: a replay starts from a snapshot.
        """
        tape, snapshots, step = self._tape, self._snapshots, self.clock.step
        self._has_ranks = num_ranks() > 1
        if not self.is_fully_watched:
            tape.lost_numbers = self._running_sums
        is_due = self.is_fully_watched or snapshots.is_due(step)
        if is_due or tape.is_paused:
            if self.is_fully_watched or self._schedule.is_taped(step, snapshots):
                if tape.is_paused:
                    snapshots.forget()
                    tape.resume()
                if is_due or snapshots.latest is None:
                    self._take_snapshot()
            elif not tape.is_paused:
                self._taping.pause()
        self._num_heard_evaluations = 0
        tape.hears_losses = False
        self.is_quiet = tape.is_paused and not self.is_fully_watched
        self.unannounced_calls = _FREQUENT if self.is_quiet else frozenset()
        if tape.is_paused:
            self._schedule.begin_quiet(step)
            self.followed_modules = FollowedModules.FIRST
        elif self._schedule.follows_inner or self.is_fully_watched:
            self.followed_modules = FollowedModules.ALL
        else:
            self.followed_modules = FollowedModules.OUTERMOST

    def step_continued(self, module: nn.Module | None) -> None:
        """Add a model that joins, and investigate a bad loss that the loop has read and dropped."""
        if module is not None and not in_function_transform() and self._in_replays(self._is_another_start, module):
            self.step_opened(module)
        elif self._detector.suspect is not None and self._in_checks(self._detector.drop_suspect):
            self._handle(is_complete=False)
            self._resume()

    def _is_another_start(self, module: nn.Module) -> bool:
        """Add a model that the loop calls in an open step; return whether the step begins with it after all.

        What was called before the first backward may have been a part of a model, or a temporary model, an exported one
        for example: it is soon gone, and no step that has used it can be replayed.
        """
        snapshots, clock = self._snapshots, self.clock
        is_new = self._training.add_model(module)
        if is_new:
            self.leaves = None
            self._schedule.begin_phase(self.clock.step)
            if snapshots.latest is not None and snapshots.latest.step == clock.step:
                snapshots.latest.state.join(self._training, self._training.tensors())
            else:
                snapshots.forget()  # what led to the present without it may not lead there any more
        if clock.has_begun or clock.in_step:
            return False
        if clock.step:
            is_allowed = self.is_fully_watched or not self._has_ranks  # whose snapshots are those of the same steps
            may_begin = self._opened_by_newcomer and not self._tape.is_paused and is_allowed
        else:
            # A policy acts thousands of times before it learns: starting anew each time takes too long.
            self._num_early_forwards += 1
            may_begin = is_new or self._num_early_forwards <= _MAX_STARTS or self._num_early_forwards.bit_count() == 1
        if not may_begin or not self._tape.begin_again():
            return False
        snapshots.forget()
        return True

    def _begin_training(self) -> None:
        self._budget.begin_training()
        self._in_memory(self._follow_memory)
        self._in_replays(self._taping.limit_memory, self._training)
        self._in_replays(self._investigator.begin)
        self._in_facts(self._facts.begin)
        self._in_checks(self._see_buffers)

    def _follow_memory(self) -> None:
        self._memory = MemoryFollower(
            self._writer,
            model_bytes=self._training.num_bytes,
            own_bytes=lambda: self._snapshots.num_bytes,
            release=functools.partial(self._snapshots.release, keeps_first=True),
        )

    def _see_buffers(self, step: int | None = None) -> None:
        self._detector.see_buffers(self._training.buffers(), step=step)

    def _take_snapshot(self) -> None:
        began = time.perf_counter()
        self._in_replays(self._snapshots.take, self.clock.step)
        self._in_checks(self._see_buffers, max(0, self.clock.step - 1))  # the open step is new
        seconds = time.perf_counter() - began
        if num_ranks() == 1:
            self._snapshots.learn_cost(seconds, self._budget.training_seconds / max(self.num_steps, 1))
            if self._detector.reads_late:  # of which the last before a snapshot is waited for
                self._snapshots.interval = max(self._snapshots.interval, _SNAPSHOT_INTERVAL_OF_DEVICES)
        else:
            self._snapshots.interval = _SNAPSHOT_INTERVAL_OF_RANKS

    def _end_attempt(self) -> None:
        """Record or investigate the step while its tensors exist: its optimizer has stepped, or was skipped."""
        self._tape.is_between = True
        self._handle(is_complete=True)
        # The variables of a file live until the script ends, those of a function only until it returns. The last step
        # that was taped is probed after that, so what a function trains is held until its next step.
        if not self._tape.is_paused:
            self._is_in_function = self._tape.is_in_function()
        if self._is_in_function and (self._snapshots.has_aside or not self._tape.is_paused):
            self._held = [self._training.models.alive(), self._training.optimizers.alive()]

    def _handle(self, *, is_complete: bool) -> None:
        """Record the open step, or investigate its anomalies, if that is due; at most once per step."""
        if self.state is not WatchState.FOLLOWING:
            return
        self.state = WatchState.HANDLED
        detector = self._detector
        if (not self.is_quiet and self.is_fully_watched) or self._settings.on_anomaly == "skip":
            self._in_checks(self._see_buffers)
        is_quiet = self.is_quiet and self._board is None
        if not is_quiet:
            self._in_facts(self._collect_facts)
        if detector.reads_late or detector.has_measured:
            self._in_checks(self._read_late)
        else:
            self._in_checks(detector.end_attempt)
        if not self._in_checks.is_on and self._copies.are_waiting:
            self._in_facts(self._copies.deliver)  # otherwise their tensors would stay alive
        wanted = None
        if self._has_ranks:
            wanted = self._in_replays(self._investigator.wanted_at, self.clock.step)
        if is_quiet:
            if not detector.new and wanted is None:
                return
            self._in_facts(self._collect_facts)
        began, num_undone = time.perf_counter(), self.num_undone
        self._in_journal(self._journal.draw, self.sites)
        if detector.new:
            self._in_journal(self._journal.flush)
        if detector.new or wanted is not None:
            self._schedule.be_alert(self.clock.step if wanted is None else wanted)
        seconds = own_seconds() - self._step_began if self.is_fully_watched else 0.0
        new = detector.take_new()
        self._in_replays(self._investigator.handle, self._tape.so_far(), new, is_complete=is_complete, seconds=seconds)
        if self._settings.on_anomaly == "stop" and any(anomaly.kind != "exception" for anomaly in new):
            raise TrainingStopped(1)  # also where nothing could be investigated
        if self.at_step is not None and self.at_step[0] == self.clock.step:
            self._end_at_step(self.at_step[1])
        if self.num_undone > num_undone:
            self._in_journal(self._journal.call, "undone", NoDetail())
        self._budget.set_aside(time.perf_counter() - began, REPLAYS)

    def _end_at_step(self, look: Callable[[ReplayedStep | str], None]) -> NoReturn:
        """Pass the open step to `look` while its tensors still exist, and end the script."""
        path = self._snapshots.path_to(self.clock.step, among=[self._tape.so_far()])
        if path is None:
            look(self._tape.step.why_not_replayable or "no snapshot leads to it")
        else:
            with self.replaying():
                look(ReplayedStep(self._training, *path, self.sites))
        raise TrainingStopped(0)

    def _read_late(self) -> None:
        """Read what was measured on an accelerator, waiting once; a loss alone is read when it has arrived.

        Losses are waited for if other ranks or the settings need them, and before the steps that led to them are lost.
        """
        detector = self._detector
        if detector.has_measured:
            detector.read_measured()
        is_taped = not self._tape.is_paused
        must_know = self.is_fully_watched or self._settings.on_anomaly != "report" or (num_ranks() > 1 and is_taped)
        is_last = is_taped and self._snapshots.is_due(self.clock.step + 1)
        detector.end_attempt(waits=must_know or is_last)

    def _collect_facts(self) -> None:
        finder = self._tape.lost_numbers
        if finder is not None:
            self._facts.see_lost_numbers(self.clock.step, finder)
        self._facts.end_attempt(self._tape.so_far(), leaves=self.leaves or (), fully=self.is_fully_watched)

    def _resume(self) -> None:
        if self.state is WatchState.HANDLED:
            self.state = WatchState.FOLLOWING

    def step_closed(self, step: int) -> None:
        """Write the metrics of the step, keep its tape, and prepare for the next."""
        self._budget.count_step()
        if self.state is WatchState.STOPPED:
            return
        if self.state is WatchState.FOLLOWING:
            self._handle(is_complete=False)
        detector = self._detector
        if detector.has_measured:  # by a second optimizer
            self._in_checks(detector.read_measured)
        self._in_journal(self._close_line)
        if self.is_quiet:
            self._tape.stay_paused(step + 1)
        else:
            self._in_replays(self._taping.step_closed, step)
        detector.new_step(step + 1)
        self._resume()
        if self._memory is not None:
            self._in_memory(self._memory.step_closed, step)
        self._flight.note(step=step + 1, phase="forward")
        self._count_costs()

    def _close_line(self) -> None:
        detector = self._detector
        optimizer = self.last_optimizer
        self._journal.close_step(
            losses=detector.losses,
            eval_losses=detector.eval_losses,
            optimizer=optimizer,
            name=None if optimizer is None else self._name_of(optimizer),
            scale=self.loss_scale.value,
            grad_norm=detector.grad_norm,
            update_norm=detector.update_norm,
            is_taped=not self._tape.is_paused,
            is_late=detector.reads_late,
        )

    def _count_costs(self) -> None:
        """Count what the step has cost besides its hooks, and end the steps that are watched in full."""
        tape, budget = self._tape, self._budget
        budget.add(self.quiet_seconds + tape.seconds - self._tape_seconds + self._num_module_calls * HOOKED_SECONDS)
        self.quiet_seconds = 0.0
        self._tape_seconds = tape.seconds
        if self._schedule.ends_full_steps(self.num_steps, is_taped=not tape.is_paused, training=self._training):
            self._schedule.end_full_steps(self.num_steps, num_module_calls=self._num_module_calls)
        elif not tape.is_paused:
            spent = max(budget.spent_seconds - self._spent_at_start, 0.0)
            budget.spend(spent, TAPING)
            self._schedule.taped_step_seconds = spent
        self._num_module_calls = 0

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """Inside the block, steps that run are replays: nothing of them is counted as the training's own."""
        before, self.state = self.state, WatchState.REPLAYING
        followed, self.followed_modules = self.followed_modules, FollowedModules.ALL
        self.ignores_loop = True
        self._tape.hold()
        self._flight.note(step=self.clock.step, phase="replay")
        try:
            with _eagerly(), separate_step_hooks():
                yield
        finally:
            self.ignores_loop = False
            self.followed_modules = followed
            if self.state is WatchState.REPLAYING:
                self.state = before
            self._tape.release()
            self._flight.note(step=self.clock.step, phase=PHASES[self.clock.phase])

    # -- models --------------------------------------------------------------------------------------------------------

    def module_ignored(self) -> None:
        """Show progress in a replay, too, where no module is followed: it may crash or hang there."""
        self._flight.beat()

    def module_called(self, call: ModuleCall, args: tuple[Any, ...]) -> None:
        """Note where the loop is; a call by the loop goes onto the tape."""
        phase, site = PHASES[self.clock.phase], self.sites.names[call.site]
        self._num_module_calls += 1
        if call.depth:  # this is called often
            self._flight.enter(phase, site)
            if call.depth == 1 and self._awaits_buffers:
                self._awaits_buffers = False
                self._in_facts(self._facts.buffers_ready, self.clock.step, fully=self.is_fully_watched)
            return
        if self._states.num_followed and call.is_by_loop and torch.is_grad_enabled() and not self.clock.microbatch:
            self._in_states(self._states.see_batch, self.clock.step, site, args, call.keyword_arguments())
        if not is_in_training(call.module):
            self._in_facts(self._facts.evaluated, call.module, self.clock.step, args, call.keyword_arguments())
        if call.is_by_loop and not torch.is_grad_enabled():
            fully = self.is_fully_watched
            self._in_facts(self._facts.called_without_gradients, call.module, args, self.clock.step, fully=fully)
        if self._is_followed(call):
            self._given = args, call.keyword_arguments()
        if self._tape.is_paused:
            is_evaluation = not torch.is_grad_enabled() and call.is_by_loop
            is_evaluation &= not is_in_training(call.module) or self._trail.wants_training_calls
            self._choose_followed(is_evaluation=is_evaluation)
            if self.followed_modules is FollowedModules.FIRST:
                self._flight.note(step=self.clock.step, phase=phase)
                return
        elif call.is_by_loop and (torch.is_grad_enabled() or self._may_change_itself(call.module)):
            self._tape_model(call, args, site=site)
        self._tape.hold()
        self._flight.note(step=self.clock.step, phase=phase)
        self._flight.enter(phase, site)

    def _may_change_itself(self, module: nn.Module) -> bool:
        """Return whether a forward without gradients may change the model: the statistics that a norm updates.

        What it returns is copied where the step uses it, as any other tensor from outside.
        """
        if not is_in_training(module):
            return False
        known = self._has_buffers.get(module)
        if known is None:
            known = self._has_buffers[module] = next(module.buffers(), None) is not None
        return known

    def _choose_followed(self, *, is_evaluation: bool) -> None:
        """In a step that is not taped, look for the losses of evaluations, as long as there are few."""
        self._num_heard_evaluations += is_evaluation
        hears = is_evaluation and self._num_heard_evaluations <= _MAX_HEARD_EVALUATIONS
        self._tape.hears_losses = hears
        self.followed_modules = FollowedModules.OUTERMOST if hears else FollowedModules.FIRST

    def _tape_model(self, call: ModuleCall, args: tuple[Any, ...], *, site: str) -> None:
        kwargs = call.keyword_arguments()
        entry = self._taping.model_begins(call.module, args, kwargs)
        detail = ForwardDetail(site=site, training=is_in_training(call.module))
        self._in_journal(self._journal.call, "forward", detail)
        if entry is not None and is_loss(entry) and self.is_fully_watched:
            self._in_facts(self._facts.see_criterion, args)
        self._awaits_buffers = True

    def module_returned(self, call: ModuleCall, output: Any) -> None:
        """Note that the module has ended, and what a call by the loop returned."""
        self._flight.leave(self.sites.names[call.site])
        if call.depth:
            return
        self._taping.model_ends(output)
        if not torch.is_grad_enabled():
            self._in_checks(self._detector.see_eval_loss, output)
        if self._is_followed(call):
            self._in_trail(self._follow_output, call.module, output)
        self._tape.release()

    def _is_followed(self, call: ModuleCall) -> bool:
        """Say whether what the loop computes from the result of a call is followed."""
        return call.is_by_loop and (not torch.is_grad_enabled() or self.is_fully_watched)

    def _follow_output(self, module: nn.Module, output: Any) -> None:
        """Follow what the loop computes from what a model returned; a loss module is a part of that."""
        (args, kwargs), self._given = self._given, ((), {})
        if module in self._training.models:
            self._trail.model_returned(module, (args, kwargs), output, in_training=is_in_training(module))
        elif self._trail.is_on and type(module).__module__ == "torch.nn.modules.loss":
            self._see_output("module_loss", args, kwargs, output)
        self._tape.follows_outputs = self._trail.is_on

    def _see_output(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        step = self.clock.step + self.clock.is_over
        line = self._tape.loop_line()
        self._in_trail(self._trail.see, name, args, kwargs, result, step=step, line=line)
        self._tape.follows_outputs = self._trail.is_on and self._in_trail.is_on

    def modules_interrupted(self) -> None:
        """Leave the model that an exception ended."""
        self._flight.clear()
        self._taping.drop_model()
        self._given = ((), {})
        self._tape.release()

    # -- backward ------------------------------------------------------------------------------------------------------

    def backward_began(self, backward: BackwardCall) -> None:
        """Look at the loss before its gradients are computed, and put the call onto the tape."""
        self._tape.hold()
        if backward.is_nested:
            return
        self._flight.note(step=self.clock.step, phase="backward")
        loss = self._in_checks(self._see_loss, backward)
        if self._detector.new:
            self._in_replays(self._investigator.request, self.clock.step)
        if self._taping.backward_begins(backward, loss):
            self._in_replays(self._taping.keep_gradients, were_cleared=self._journal.has_called("zero_grad"))
        is_first = self.clock.microbatch == 0 or self._uncleared.is_due
        if self.is_fully_watched and is_first and backward.accumulates:
            self._in_facts(self._uncleared.backward_begins)
        if self.is_fully_watched and backward.accumulates:
            self._in_facts(self._uncleared.drop_cleared_left_over)
        self._in_journal(self._journal.call, "backward", backward.detail())

    def _see_loss(self, backward: BackwardCall) -> Tensor | None:
        """Check the loss; return a copy of it, with its scale, for the tape, or None if there is none to tape."""
        if backward.loss is None or is_transformed(backward.loss):
            return None
        self._detector.see_loss(backward.loss)
        if self._tape.is_paused:
            return None
        scaled: Tensor = backward.roots[0].detach().clone()
        return scaled

    def backward_ended(self, *, is_microbatch: bool) -> None:
        """Look at the gradients of a microbatch."""
        clock = self.clock
        if is_microbatch and not self.is_quiet:
            self._in_facts(self._facts.gradients_ready, clock.step)
        self._taping.backward_ends()
        if clock.is_over and not clock.in_step:
            self._tape.is_between = True
        self._tape.release()
        if self._stepped_in_backward and not clock.in_backward:
            self._stepped_in_backward = False
            self._end_attempt()

    # -- optimizers ----------------------------------------------------------------------------------------------------

    def optimizer_began(self, attempt: StepAttempt) -> None:
        """Look at the gradients as the optimizer sees them."""
        if attempt.is_nested:
            return
        optimizer, step = attempt.optimizer, self.clock.step
        self._flight.note(step=step, phase="optimizer")
        num_groups = len(optimizer.param_groups)
        if self._num_groups.get(optimizer) != num_groups:
            self._add_optimizer(optimizer)
            self._num_groups[optimizer] = num_groups
        self._taping.step_begins(optimizer)
        always = self._settings.on_anomaly == "skip"
        self._in_checks(self._detector.see_gradients, optimizer, fully=self.is_fully_watched, always=always)
        self._tape.hold()
        if not self.is_quiet:
            self._in_facts(self._facts.gradients_ready, step, optimizer)
        self._in_journal(self._note_step, optimizer)

    def _add_optimizer(self, optimizer: Optimizer) -> None:
        """Add an optimizer that is new or has a new group: earlier steps cannot be replayed with it."""
        is_new = self._in_models(self._training.add_optimizer, optimizer)
        if (is_new and self.clock.step) or optimizer in self._num_groups:
            self._snapshots.forget()
        self.is_quiet = False

    def _note_step(self, optimizer: Optimizer) -> None:
        detail = StepDetail(
            optimizer=self._name_of(optimizer),
            lr=tuple(learning_rates(optimizer)),
            by_scaler=bool(self._taping.opaque_calls) and self._taping.in_scaler_step,
            num_carried=self._uncleared.num_in(optimizer),
            is_fresh=not optimizer.state,
        )
        self._journal.call("step", detail)
        if not self.is_quiet:
            detail.num_left_over, detail.left_by = self._uncleared.take_left_over(optimizer)
            self._uncleared.step_begins()
        self._stepping = (optimizer, detail)

    def _name_of(self, optimizer: Optimizer) -> str:
        """Return the name of an optimizer, nearly always that of the last one."""
        if self._named is None or self._named[0]() is not optimizer:
            self._named = (ref(optimizer), self._facts.optimizer_name(optimizer))
        return self._named[1]

    def closure_began(self) -> None:
        """Note what the closure does as a part of the step."""
        self._uncleared.closure_begins()
        self._taping.closure_begins()

    def closure_ended(self) -> None:
        """Go back to the optimizer."""
        self._taping.closure_ends()
        if self.is_fully_watched and self._stepping is not None:
            self._in_facts(self._see_carried_in_closure, *self._stepping)

    def _see_carried_in_closure(self, optimizer: Optimizer, detail: StepDetail) -> None:
        detail.num_carried_in_closure = self._uncleared.closure_ends(optimizer)

    def optimizer_ended(self, attempt: StepAttempt) -> None:
        """Look at the weights after the step."""
        if attempt.is_nested:
            return
        if self._taping.step_ends():  # a second optimizer uses the backward of the step before
            self._in_replays(self._taping.keep_gradients, were_cleared=self._journal.has_called("zero_grad"))
        self._stepping = None
        self._in_checks(self._detector.see_update)
        if self.is_fully_watched:
            self._in_facts(self._note_used, attempt.optimizer)
        self._tape.release()
        if self.clock.in_backward:
            self._stepped_in_backward = True
        elif not self._taping.in_scaler_step:
            self._end_attempt()

    def _note_used(self, optimizer: Optimizer) -> None:
        others = [other for other in self._training.optimizers if other is not optimizer]
        self._uncleared.note_used(optimizer)
        if others:
            self._uncleared.note_left_over(optimizer, self._name_of(optimizer), others)

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        """Note an optimizer's step that a scaler has skipped."""
        self._detector.drop_update()
        self._in_checks(self._see_buffers)  # the forward has changed them all the same
        detail = StepDetail(optimizer=self._name_of(optimizer), skipped=True)
        self._in_journal(self._journal.call, "step", detail)
        self._end_attempt()

    # -- other calls of the loop ---------------------------------------------------------------------------------------

    def loop_calling(self, kind: LoopCallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put a call onto the tape if the loop itself has made it; the tape sees nothing of what it does inside."""
        self._taping.call_begins(kind, args, kwargs)

    def loop_call_ended(self, kind: LoopCallKind) -> None:
        """Look at the loop's own functions again; when a scaler has stepped, the attempt is over."""
        self._taping.call_ends(kind)
        if kind == "scaler_step" and self.clock.num_attempts and not self.clock.skipped:
            self._end_attempt()

    def called(self, call: LoopCall) -> None:
        """Note that something was compiled, also in a replay; it is then compared less strictly."""
        if call.kind == "compile":
            self._investigator.compiles = True
        super().called(call)

    def loop_called(self, call: LoopCall) -> None:
        """Write down what the loop did."""
        if call.kind in ("scale", "unscale"):
            self._training.scalers.add(call.owner)
        if call.is_written:
            self._in_journal(self._write_call, call)

    def _write_call(self, call: LoopCall) -> None:
        if call.kind == "zero_grad" and isinstance(call.owner, Optimizer):
            self._uncleared.note_cleared(call.owner)
            self._journal.call("zero_grad", ZeroGradDetail(of=self._name_of(call.owner)))
            return
        detail = unread_detail(cast(CallDetail, call.detail))
        if call.kind == "zero_grad":
            self._uncleared.note_cleared(call.owner)
        elif isinstance(detail, EpochDetail):
            if not torch.is_grad_enabled():
                self._in_trail(self._trail.see_batches, call.result)
            content = dataset_content(call.owner.dataset)
            copied = copied_generators(call.owner.dataset) if detail.num_workers else ()
            number = self._loaders.number_of(call.owner, content)
            detail = replace(detail, loader=number, content=content, generators=copied)
        elif call.kind == "load":
            self._in_models(self._training.refresh)
            self._snapshots.forget()
        if call.kind in ("save", "load", "read"):
            self._in_states(self._see_checkpoint, call)
        self._journal.await_numbers(detail)
        self._journal.call(cast(CallKind, call.kind), detail)

    def _see_checkpoint(self, call: LoopCall) -> None:
        """Describe the state that the loop has saved, or have it described when the next step begins."""
        clock, states = self.clock, self._states
        is_first = not self.num_steps and not clock.has_begun
        if call.kind == "save":
            states.saved(call.owner, clock.step + clock.is_over)
        elif call.kind == "load":
            states.loaded(call.owner, is_first=is_first)
        else:
            states.read(is_first=is_first)
        if states.awaits is not None:
            self._schedule.end_quiet()  # the next step is followed

    def _see_loss_function(self, args: tuple[Any, ...], result: Any) -> None:
        if not torch.is_grad_enabled():
            self._in_checks(self._detector.see_eval_loss, result)
        elif self.is_fully_watched:
            self._in_facts(self._facts.see_criterion, args)

    def _see_loop_value(self, function: str, args: tuple[Any, ...], result: Any) -> None:
        step = self.clock.step + self.clock.is_over  # what comes between two steps is for the next
        self._in_facts(self._loop_values.see, function, args, result, step=step, line=self._tape.loop_line)

    def _see_reshape(self, x: Tensor, result: Tensor) -> None:
        if len(self._reshaped) < _MAX_RESHAPED and is_permuted_shape(tuple(x.shape), tuple(result.shape)):
            line = self._tape.line()
            if line is not None and line not in self._reshaped:
                self._reshaped.add(line)
                step, source = self.clock.step, f"{shown_path(line[0])}:{line[1]}"
                shape, new = tuple(x.shape), tuple(result.shape)
                self._in_trail(self._writer.write, ReshapeProbe(step=step, source=source, shape=shape, new_shape=new))

    def _see_draw(self, function: str, drawn: Any) -> None:
        step = self.clock.step + self.clock.is_over
        self._in_facts(self._facts.see_draw, function, drawn, step, self._tape.loop_line())

    # -- the end of the training ---------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._move_to_own_folder()
        until = time.monotonic() + self._settings.probe_seconds
        try:
            if self._detector.reads_late and self._in_checks(self._detector.read_late, waits=True):
                self._resume()  # the last step has been handled, but not this
            self._in_checks(self._detector.drop_suspect)
            self._in_trail(self._write_trail)
            # A last forward after the training is no step, unless it raised or there was no step before it.
            if self.clock.has_begun or (self.is_open and (not self.num_steps or self._detector.new)):
                self.close_step()
            with self._counting("probes"), announcing("trying experiments on the last step"):
                self._in_replays(self._probe)
        except Exception as error:
            self.failed(error)
        if self._memory is not None:
            self._in_memory(self._memory.close)
        self._in_journal(self._journal.close)
        with self._counting("probes"), announcing("trying fixes on the last steps"):
            self._in_replays(self._try_fixes, until)
        if not self.saw_training and self.has_other_threads:
            self._note_gap(Gap(kind="thread", rank=self._writer.rank))
        if self._snapshots.note is not None:
            self.complaints.append(f"{self._snapshots.note}.")
        self.complaints += self._investigator.left_out
        if self._taping.complaint is not None:
            self.complaints.append(self._taping.complaint)
        if self._investigator.complaint is not None:
            self.complaints.append(self._investigator.complaint)

    def _write_trail(self) -> None:
        for probe in (*self._trail.probes(), *self._loaders.unused(self.clock.step)):
            self._writer.write(probe)

    def _probe(self) -> None:
        """Run the probes on the last step that was taped, unless something went wrong."""
        if not self._may_experiment:
            return
        with self.replaying(), torch.random.fork_rng(devices=[]):
            self._in_facts(self._facts.compare_evaluation, self.clock.step, self._trail.trial)
        if self.anomalies:
            return
        is_suspicious = not self._detector.loss_has_fallen
        if is_suspicious:
            self._in_facts(self._facts.try_predicting, self.clock.step)
        path = self._snapshots.path_to_last()
        if path is not None and why_no_room(self._training) is None:
            with self.replaying():
                probes = LastStepProbes(self._writer, seconds=self._settings.probe_seconds)
                probes.run(self._training, path, self.sites, is_suspicious=is_suspicious)

    def _try_fixes(self, until: float) -> None:
        """Play the first and the last steps that were taped with the fixes of what a first diagnosis finds."""
        if not self._may_experiment or why_no_room(self._training) is not None:
            return
        paths = [path for path in (self._snapshots.path_from_first(), self._snapshots.path_to_last()) if path]
        with self.replaying():
            try_fixes(self._writer, self._training, paths, until=until)

    @property
    def _may_experiment(self) -> bool:
        """Whether steps may be played after the end: the user allows time for it, and no other ranks have to join."""
        is_alone = self._writer.info.ranks == 1
        return self.state is not WatchState.STOPPED and is_alone and self._settings.probe_seconds > 0


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Run compiled code eagerly inside the block; the compiler is not imported for this."""
    if compiler_is_loaded():
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        yield


def is_permuted_shape(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a shape has the dimensions of another in another order, three or more that matter.

    >>> is_permuted_shape((8, 32, 32, 3), (8, 3, 32, 32)), is_permuted_shape((8, 3, 4), (24, 4))
    (True, False)
    """
    sizes, new = ([size for size in shape if size != 1] for shape in (before, after))
    return len(sizes) > 2 and sizes != new and sorted(sizes) == sorted(new)
