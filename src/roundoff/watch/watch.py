"""One training under watch: what is done at each thing the loop does, and once a step, at almost no cost."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.diagnose import diagnose_and_save
from roundoff.record.loop.calls import LoopCall, LoopCallKind, detail_to_json, learning_rates
from roundoff.record.loop.follower import BackwardCall, LoopFollower, StepAttempt
from roundoff.record.loop.module_stack import ModuleCall
from roundoff.record.loop.observer import observing_loop
from roundoff.record.loop.scaled_optimizer import as_scaled
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import PHASES
from roundoff.record.torch_private import clip_module, compiler_is_loaded, hidden_from_modes
from roundoff.replay.investigator import Investigator
from roundoff.replay.rank_consensus import num_ranks
from roundoff.replay.replayed_step import ReplayedStep
from roundoff.replay.snapshots import Snapshots
from roundoff.replay.state import Training
from roundoff.replay.step_tape import BackwardEntry, ModelEntry, StepEntry
from roundoff.replay.tape_recorder import TapeRecorder
from roundoff.report import verdict_text, watched_text
from roundoff.report.tensorboard import TensorBoard
from roundoff.runs import Anomaly, CallKind, Finding, JsonValue, RecordingStoppedWarning, Run, RunWriter
from roundoff.runs.flight import FlightRecorder
from roundoff.watch.budget import TimeBudget
from roundoff.watch.detector import AnomalyDetector
from roundoff.watch.exceptions import exception_detail, has_raised_since, raising_module
from roundoff.watch.facts.collector import FactCollector
from roundoff.watch.facts.dataset_content import dataset_content
from roundoff.watch.facts.step_batch import is_loss
from roundoff.watch.facts.uncleared_gradients import UnclearedGradients
from roundoff.watch.journal import StepJournal
from roundoff.watch.probes.last_step import LastStepProbes
from roundoff.watch.process.memory_growth import MemoryFollower
from roundoff.watch.settings import WatchSettings

_SNAPSHOT_INTERVAL_OF_RANKS = 8
"""Steps between the snapshots of several ranks: they must be those of the same steps."""

_TAPED: frozenset[LoopCallKind] = frozenset(
    {"zero_grad", "clip", "unscale", "update", "scaler_step", "optimizer_unscale", "optimizer_clip"}
)
"""Calls that a replay makes again."""
_OPAQUE: frozenset[LoopCallKind] = _TAPED | {"scheduler", "load", "save", "compile"}
"""Calls inside of which the tape sees nothing."""
_METHODS: dict[LoopCallKind, str] = {
    "unscale": "unscale_",
    "scaler_step": "step",
    "optimizer_unscale": "unscale_",
    "optimizer_clip": "clip_grad_norm_",
}
"""Calls by other names than those of their methods."""


class WatchState(Enum):
    """What a watch is doing."""

    FOLLOWING = "following the loop"
    HANDLED = "following the loop; what the open step called for has been done"
    REPLAYING = "playing a step again: what the loop seems to do is our own doing"
    STOPPED = "failed: steps are counted, and nothing else"


class Watch(LoopFollower):
    """Follows the loop of a training: its calls, losses, norms; keeps snapshots; has bad steps investigated."""

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
        super().__init__(sites=sites)
        self.folder = writer.folder
        self.state = WatchState.FOLLOWING
        self.training_failed = False
        """To be set where the training fails without an exception that leaves the block."""
        self.complaints: list[str] = []
        """What a user should know that is no finding; complete when the block has ended."""
        self._began = time.perf_counter()
        self._settings = settings
        self._writer = writer
        self._flight = flight
        self._budget = TimeBudget(settings.budget)
        self._training = Training()
        self._snapshots = Snapshots(self._training, memory_bytes=settings.snapshot_bytes)
        self._journal = StepJournal(writer, self.clock, board=board)
        self._detector = AnomalyDetector(writer, sites=sites, budget=self._budget)
        self._facts = FactCollector(
            writer, self._training, sites=sites, budget=self._budget, kept_batches=settings.kept_batches
        )
        self._uncleared = UnclearedGradients()
        self._memory: MemoryFollower | None = None
        self._tape = TapeRecorder(
            is_state=self._training.is_state, on_forward=self.function_forward, on_error=self._tape_failed
        )
        self._tape.on_loss = self._see_loss_function
        self._tape.on_scalar = self._detector.see_scalar
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
        self._model_entry: ModelEntry | None = None
        self._step_entry: StepEntry | None = None
        self._backward_is_taped = False
        self._error_before: BaseException | None = None
        """The exception that was being handled when the running model or backward began."""
        self._awaits_buffers = False
        self._opaque_calls: list[LoopCallKind] = []
        """Calls of the loop that are running, inside of which the tape sees nothing."""
        self._loaders: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    @property
    def num_undone(self) -> int:
        """How many steps were undone, with `on_anomaly="skip"`."""
        return self._investigator.num_undone

    @property
    def anomalies(self) -> list[Anomaly]:
        """What was seen so far that cannot be right."""
        return self._detector.anomalies

    @property
    def cost(self) -> float:
        """What the watch has cost, as a share of the training's time."""
        return self._budget.cost

    @property
    def seconds(self) -> float:
        """How long the training has been watched."""
        return time.perf_counter() - self._began

    @property
    def is_fully_watched(self) -> bool:
        """Whether everything is looked at in the open step, whatever it costs."""
        return self.clock.step < self._settings.full_steps or self._settings.every_step

    def verdict(self) -> str:
        """Diagnose what was seen, and return the screen that `roundoff run` prints; to be called after the block."""
        return self.diagnose()[1]

    def diagnose(self) -> tuple[tuple[Finding, ...], str]:
        """Diagnose what was seen; return the findings, which go into findings.json, and the screen to print."""
        run = Run.open(self.folder)
        diagnosis = diagnose_and_save(run)
        watched = watched_text(num_steps=self.num_steps, seconds=self.seconds, cost=self.cost)
        screen = verdict_text(run, diagnosis, watched=f"{watched}; {self.folder}", draws=False)
        complaints = [f"roundoff: {complaint}" for complaint in self.complaints]
        return tuple(diagnosis.findings), "\n".join([*complaints, screen])

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Know an optimizer before it steps."""
        self._training.add_optimizer(optimizer)

    def note_exception(self, error: BaseException) -> None:
        """Take note that the training raised."""
        if isinstance(error, Exception) and self.state is not WatchState.STOPPED:
            module = raising_module(error)
            site = None if module is None else self.sites.names[self.sites.of_module(module, 0)]
            self._detector.note(
                "exception",
                phase=PHASES[self.clock.phase],
                name=type(error).__name__,
                detail={**exception_detail(error), "site": site},
            )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Follow the loop inside the block, and close the run at its end."""
        status: Literal["finished", "failed"] = "failed"
        try:
            with observing_loop(self):
                self._tape.release()
                try:
                    yield
                    status = "failed" if self.training_failed else "finished"
                finally:
                    self._finish()
        finally:
            self._tape.hold()
            self._tape.new_step(self.clock.step)
            self._snapshots.drop_references()
            self._facts.drop_references()
            self.last_optimizer = None
            self._writer.close(status=status)

    def failed(self, error: Exception) -> None:
        """Stop watching with one warning; the training goes on."""
        if self.state is WatchState.STOPPED:
            return
        self.state = WatchState.STOPPED
        self._tape.hold()
        reason = f"{type(error).__name__}: {error}"
        self._writer.note(f"Watching stopped at step {self.step}: {reason}")
        warnings.warn(
            f"roundoff stopped watching at step {self.step}; the training goes on.\n  why: {reason}",
            RecordingStoppedWarning,
            stacklevel=2,
        )

    # -- once a step ---------------------------------------------------------------------------------------------------

    def step_opened(self, module: nn.Module | None) -> None:
        """Take a snapshot if one is due, before anything of the step has been computed."""
        began = time.perf_counter()
        if module is not None:
            self._training.add_model(module)
        is_first = not self.clock.step
        if is_first:
            self._training.find_optimizers()
        self._tape.begin()
        if is_first:
            self._begin_training()
        if self.is_fully_watched or self._snapshots.is_due(self.clock.step):
            self._take_snapshot()
        self._budget.spend(time.perf_counter() - began)

    def step_continued(self, module: nn.Module | None) -> None:
        """Take in a model that joins, and look into a bad loss that the loop has read and dropped."""
        if module is not None and self._is_another_start(module):
            self.step_opened(module)
        elif self._detector.drop_suspect():
            self._handle(is_complete=False)
            self._resume()

    def _is_another_start(self, module: nn.Module) -> bool:
        """Take in a model that the loop calls in an open step; say whether the step begins with it after all.

        What was called before the first backward may have been a part of a model, or a model that was only tried out.
        """
        snapshots, clock = self._snapshots, self.clock
        if self._training.add_model(module):
            if snapshots.latest is not None and snapshots.latest.step == clock.step:
                snapshots.latest.state.join(self._training, self._training.tensors())
            else:
                snapshots.forget()  # what led to the present without it may not lead there any more
        if clock.step or clock.has_begun or clock.in_step or not self._tape.begin_again():
            return False
        snapshots.forget()
        return True

    def _begin_training(self) -> None:
        self._memory = MemoryFollower(
            self._writer, model_bytes=self._training.num_bytes, own_bytes=lambda: self._snapshots.num_bytes
        )
        self._investigator.begin()
        self._facts.begin()

    def _take_snapshot(self) -> None:
        began = time.perf_counter()
        self._snapshots.take(self.clock.step)
        self._detector.see_buffers(self._training.buffers())
        seconds = time.perf_counter() - began
        if num_ranks() == 1:
            self._snapshots.learn_cost(seconds, self._budget.training_seconds / max(self.num_steps, 1))
        else:
            self._snapshots.interval = _SNAPSHOT_INTERVAL_OF_RANKS

    def _keep_gradients_of_start(self) -> None:
        """Keep the gradients that this step adds to, unless they were cleared since it began."""
        latest = self._snapshots.latest
        if latest is None or latest.step != self.clock.step or self.clock.microbatch:
            return
        if not any(call.call == "zero_grad" for call in self._journal.open_calls):
            latest.state.take_gradients()

    def _end_attempt(self) -> None:
        """Record or investigate while everything is at hand: the optimizer has stepped, or a scaler has skipped it."""
        self._tape.is_between = True
        self._handle(is_complete=True)

    def _handle(self, *, is_complete: bool) -> None:
        """Do what the open step calls for, once: record it, or investigate what cannot be right in it."""
        if self.state is not WatchState.FOLLOWING:
            return
        self.state = WatchState.HANDLED
        detector, tape = self._detector, self._tape
        detector.end_attempt()
        reached = [leaf for kept in self.leaves or () if (leaf := kept()) is not None]
        self._facts.end_attempt(tape.so_far(), reached=reached, fully=self.is_fully_watched)
        began, num_undone = time.perf_counter(), self.num_undone
        self._journal.draw(self.sites)
        if detector.has_new:
            self._journal.flush()
        self._investigator.handle(tape.so_far(), detector.take_new(), is_complete=is_complete)
        if self.num_undone > num_undone:
            self._journal.call("undone", {})
        self._budget.exempt(time.perf_counter() - began)

    def _resume(self) -> None:
        if self.state is WatchState.HANDLED:
            self.state = WatchState.FOLLOWING

    def step_closed(self, step: int) -> None:
        """Write what the step came to, keep its tape, and be ready for the next."""
        began = time.perf_counter()
        self._budget.count_step()
        if self.state is WatchState.STOPPED:
            return
        self._handle(is_complete=False)
        detector = self._detector
        with hidden_from_modes():
            metrics = self._journal.close_step(
                losses=detector.losses,
                eval_losses=detector.eval_losses,
                optimizer=self.last_optimizer,
                scale=self.loss_scale.value,
                grad_norm=detector.grad_norm,
                update_norm=detector.update_norm,
            )
            self._snapshots.add(self._tape.new_step(step + 1))
        detector.new_step(step + 1)
        self._resume()
        if self._memory is not None:
            self._memory.step_closed(step)
        self._flight.note(step=step + 1, phase="forward")
        if self.num_steps == self._settings.full_steps:
            self._budget.start_anew()
        else:
            self._budget.spend(time.perf_counter() - began)
        self._journal.show(metrics)  # not within the budget: users who ask for TensorBoard want all of it

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """Let steps be played again inside the block without being taken for the training's own."""
        before, self.state = self.state, WatchState.REPLAYING
        self.ignores_loop = True
        self._tape.hold()
        self._flight.note(step=self.clock.step, phase="replay")
        try:
            with _eagerly():
                yield
        finally:
            self.ignores_loop = False
            if self.state is WatchState.REPLAYING:
                self.state = before
            self._tape.release()
            self._flight.note(step=self.clock.step, phase=PHASES[self.clock.phase])

    # -- models --------------------------------------------------------------------------------------------------------

    def module_ignored(self) -> None:
        """Show that the process gets on also in a replay, where no module is followed: it may crash or hang there."""
        self._flight.beat()

    def module_called(self, call: ModuleCall, args: tuple[Any, ...]) -> None:
        """Note where the loop is; a call by the loop goes onto the tape."""
        phase, site = PHASES[self.clock.phase], self.sites.names[call.site]
        if call.depth:  # this is called often
            self._flight.enter(phase, site)
            if call.depth == 1 and self._awaits_buffers:
                self._awaits_buffers = False
                self._facts.buffers_ready(self.clock.step, fully=self.is_fully_watched)
            return
        began = time.perf_counter()
        if call.is_by_loop and (torch.is_grad_enabled() or call.module.training):
            self._tape_model(call, args, site=site)
        self._tape.hold()
        self._flight.note(step=self.clock.step, phase=phase)
        self._flight.enter(phase, site)
        self._budget.spend(time.perf_counter() - began)

    def _tape_model(self, call: ModuleCall, args: tuple[Any, ...], *, site: str) -> None:
        self._model_entry = self._tape.model_enter(call.module, args, call.keyword_arguments())
        self._error_before = sys.exc_info()[1]
        self._journal.call("forward", {"site": site, "training": call.module.training})
        if is_loss(self._model_entry) and self.is_fully_watched:
            self._facts.see_criterion(args)
        self._awaits_buffers = True

    def module_returned(self, call: ModuleCall, output: Any) -> None:
        """Note that the module has ended; what the loop called has given its result."""
        self._flight.leave(self.sites.names[call.site])
        if call.depth:
            return
        entry, self._model_entry = self._model_entry, None
        if entry is not None:
            self._tape.model_leave(entry, output)
            entry.raised = output is None and has_raised_since(self._error_before)
        if not torch.is_grad_enabled():
            self._detector.see_eval_loss(output)
        self._tape.release()

    def modules_interrupted(self) -> None:
        """Leave the model that an exception ended."""
        self._flight.clear()
        self._model_entry = None
        self._tape.release()

    # -- backward ------------------------------------------------------------------------------------------------------

    def backward_began(self, backward: BackwardCall) -> None:
        """Look at the loss before its gradients are computed, and put the call onto the tape."""
        self._tape.hold()
        if backward.is_nested:
            return
        began = time.perf_counter()
        self._flight.note(step=self.clock.step, phase="backward")
        loss = self._see_loss(backward)
        if self._detector.has_new:
            self._investigator.request(self.clock.step)
        self._backward_is_taped = not backward.is_part_of_forward and backward.accumulates
        self._error_before = sys.exc_info()[1]
        if self._backward_is_taped:
            self._keep_gradients_of_start()
            self._tape.backward(backward.roots, *backward.arguments, loss=loss)
        if self.is_fully_watched and self.clock.microbatch == 0 and backward.accumulates:
            with hidden_from_modes():
                self._uncleared.backward_begins()
        self._journal.call("backward", backward.detail())
        self._budget.spend(time.perf_counter() - began)

    def _see_loss(self, backward: BackwardCall) -> Tensor | None:
        """Have the loss looked at; return it as it is, scaled, or None if it is no loss."""
        if backward.loss is None:
            return None
        self._detector.see_loss(backward.loss)
        with hidden_from_modes():
            scaled: Tensor = backward.roots[0].detach().clone()
        return scaled

    def backward_ended(self, *, is_microbatch: bool) -> None:
        """Look at the gradients of a microbatch."""
        clock = self.clock
        if is_microbatch:
            self._facts.gradients_ready(clock.step)
        if self._backward_is_taped and not clock.in_backward and has_raised_since(self._error_before):
            self._tape.raised(BackwardEntry)
        if clock.is_over and not clock.in_step:
            self._tape.is_between = True
        self._tape.release()

    # -- optimizers ----------------------------------------------------------------------------------------------------

    @property
    def _in_scaler_step(self) -> bool:
        """Whether a GradScaler is running that steps an optimizer, or skips its step."""
        return "scaler_step" in self._opaque_calls

    def optimizer_began(self, attempt: StepAttempt) -> None:
        """Look at the gradients as the optimizer sees them."""
        if attempt.is_nested:
            return
        began, optimizer, step = time.perf_counter(), attempt.optimizer, self.clock.step
        self._flight.note(step=step, phase="optimizer")
        if self._training.add_optimizer(optimizer) and step:
            self._snapshots.forget()  # it may have state that was not kept
        if not self._in_scaler_step:
            self._step_entry = self._tape.step_enter(optimizer)
        always = self._settings.on_anomaly == "skip"
        self._detector.see_gradients(optimizer, fully=self.is_fully_watched, always=always)
        self._tape.hold()
        self._facts.gradients_ready(step, optimizer)
        self._journal.call("step", self._step_detail(optimizer))
        self._budget.spend(time.perf_counter() - began)

    def _step_detail(self, optimizer: Optimizer) -> dict[str, JsonValue]:
        name = self._facts.optimizer_name(optimizer)
        detail: dict[str, JsonValue] = {"optimizer": name, "lr": list(learning_rates(optimizer))}
        if self._in_scaler_step:
            detail["by_scaler"] = True
        if num_uncleared := self._uncleared.num_in(optimizer):
            detail["num_carried"] = num_uncleared
        if not optimizer.state:
            detail["is_fresh"] = True
        return detail

    def closure_began(self) -> None:
        """Note what the closure does as a part of the step."""
        if self._step_entry is not None:
            self._tape.closure_enter(self._step_entry)
            self._tape.release()

    def closure_ended(self) -> None:
        """Go back to the optimizer."""
        if self._step_entry is not None:
            self._tape.hold()
            self._tape.closure_leave()

    def optimizer_ended(self, attempt: StepAttempt) -> None:
        """Look at the weights after the step."""
        if attempt.is_nested:
            return
        began = time.perf_counter()
        if self._step_entry is not None and not self._step_entry.closures:
            self._keep_gradients_of_start()  # a second optimizer uses the backward of the step before
        self._step_entry = None
        self._detector.see_update()
        if self.is_fully_watched:
            self._uncleared.used(attempt.optimizer)
        self._budget.spend(time.perf_counter() - began)
        self._tape.release()
        if not self._in_scaler_step:
            self._end_attempt()

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        """Note the attempt that a scaler did not let through."""
        self._detector.drop_update()
        self._detector.see_buffers(self._training.buffers())  # the forward has changed them all the same
        self._journal.call("step", {"optimizer": self._facts.optimizer_name(optimizer), "skipped": True})
        self._end_attempt()

    # -- other calls of the loop ---------------------------------------------------------------------------------------

    def loop_calling(self, kind: LoopCallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put a call onto the tape if the loop itself has made it; the tape sees nothing of what it does inside."""
        tape = self._tape
        is_by_loop = not self._opaque_calls and (not self.clock.in_step or tape.in_closure)
        if kind == "optimizer_backward" and is_by_loop and (optimizer := as_scaled(args[0])) is not None:
            tape.loop_call(optimizer.announce, args[1:2], {})
        if kind not in _OPAQUE:
            return
        if kind in _TAPED and is_by_loop:
            function = _function_of(kind, args, kwargs)
            if function is not None:
                tape.loop_call(function, args if kind == "clip" else args[1:], kwargs)
        self._opaque_calls.append(kind)
        tape.hold()

    def loop_call_ended(self, kind: LoopCallKind) -> None:
        """Look at the loop's own functions again; when a scaler has stepped, the attempt is over."""
        if kind in _OPAQUE:
            if kind in self._opaque_calls:
                self._opaque_calls.remove(kind)
            self._tape.release()
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
        if not call.is_written:
            return
        detail = detail_to_json(call.detail)
        if call.kind == "zero_grad":
            self._uncleared.cleared()
        elif call.kind == "epoch":
            number = self._loaders.setdefault(call.owner, len(self._loaders))
            with hidden_from_modes():
                detail = {"loader": number, **detail, "content": dataset_content(call.owner.dataset)}
        elif call.kind == "load":
            self._training.refresh()
            self._snapshots.forget()
        self._journal.call(cast(CallKind, call.kind), detail)

    def _see_loss_function(self, args: tuple[Any, ...], result: Any) -> None:
        if not torch.is_grad_enabled():
            self._detector.see_eval_loss(result)
        elif self.is_fully_watched:
            self._facts.see_criterion(args)

    def _tape_failed(self, error: Exception) -> None:
        self._tape.step.why_not_replayable = f"{type(error).__name__}: {error}"

    # -- the end of the training ---------------------------------------------------------------------------------------

    def _finish(self) -> None:
        try:
            self._detector.drop_suspect()
            if self.is_open:
                self.close_step()
            self._probe()
        except Exception as error:
            self.failed(error)
        if self._memory is not None:
            self._memory.close()
        self._journal.close()
        if not self.saw_training:
            self.complaints.append("no training step was seen: nothing was watched.")
        elif self._snapshots.note is not None:
            self.complaints.append(f"{self._snapshots.note}.")
        if self._investigator.complaint is not None:
            self.complaints.append(self._investigator.complaint)

    def _probe(self) -> None:
        """Run the probes on the last step, unless something went wrong or several ranks would have to join in."""
        seconds = self._settings.probe_seconds
        if self.state is WatchState.STOPPED or self.anomalies or self._writer.info.ranks > 1 or seconds <= 0:
            return
        path = self._snapshots.path_to(self.num_steps - 1, among=[])
        if path is None:
            return
        began = time.perf_counter()
        with self.replaying():
            last_step = ReplayedStep(self._training, *path, self.sites)
            LastStepProbes(self._writer, seconds=seconds).run(
                last_step, is_suspicious=not self._detector.loss_has_fallen
            )
        self._budget.exempt(time.perf_counter() - began)


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Have compiled code run eagerly inside the block; the compiler is not loaded for nothing."""
    if compiler_is_loaded():
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        yield


def _function_of(kind: LoopCallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what to call to make a call of the loop again."""
    if kind == "clip":
        has_norm = "total_norm" in kwargs or any(isinstance(arg, Tensor) for arg in args[1:])
        return getattr(*clip_module()) if has_norm else torch.nn.utils.clip_grad_value_
    method = _METHODS.get(kind, kind)
    return getattr(args[0], method, None) if args else None
