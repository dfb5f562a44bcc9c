"""One training under watch: follows the loop at almost no cost, and acts when something cannot be right."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.loop import OPTIMIZERS_OWN, observing_loop
from roundoff.record.sites import Sites
from roundoff.record.steps import PHASES, Phase, StepClock, has_optimizer, leaves_of
from roundoff.record.torch_private import (
    compiler_is_loaded,
    hidden_from_modes,
    keyword_arguments,
    num_running_modules,
    num_running_steps,
)
from roundoff.report.tensorboard import TensorBoard
from roundoff.runs import Anomaly, JsonValue, RecordingStoppedWarning, RunWriter
from roundoff.runs.flight import FlightRecorder
from roundoff.watch.batch_facts import is_loss
from roundoff.watch.bench import Bench
from roundoff.watch.budget import Budget
from roundoff.watch.carried import CarriedGradients
from roundoff.watch.dataset_content import content_of
from roundoff.watch.exception_detail import exception_detail, raising_module
from roundoff.watch.facts import Facts
from roundoff.watch.handling import StepHandler
from roundoff.watch.journal import Journal, learning_rates
from roundoff.watch.lookout import Lookout
from roundoff.watch.loop_calls import LoopCalls
from roundoff.watch.memory import MemoryFollower
from roundoff.watch.probes import Probes
from roundoff.watch.respond import Responder
from roundoff.watch.settings import WatchSettings
from roundoff.watch.snapshots import Snapshots
from roundoff.watch.state import Training
from roundoff.watch.step_tape import Backward, ModelCall, StepCall
from roundoff.watch.tape import Tape
from roundoff.watch.together import Requests, num_ranks

_INTERVAL_OF_RANKS = 8
"""Steps between the snapshots of several ranks: they must be those of the same steps."""


class Watch:
    """Follows the loop of a training: its calls, losses, norms; keeps snapshots; replays steps that went wrong."""

    def __init__(
        self,
        writer: RunWriter,
        settings: WatchSettings,
        *,
        sites: Sites,
        flight: FlightRecorder,
        board: TensorBoard | None = None,
    ) -> None:
        self.folder = writer.folder
        self.num_steps = 0
        self.saw_training = False
        self.training_failed = False
        """To be set where the training fails without an exception that leaves the block."""
        self.complaints: list[str] = []
        """What a user should know that is no finding; complete when the block has ended."""
        self._writer = writer
        self._settings = settings
        self._sites = sites
        self._flight = flight
        self._clock = StepClock(self._close_step, has_optimizer=lambda: has_optimizer(self._leaves or ()))
        self._journal = Journal(writer, self._clock, board=board)
        self._budget = Budget(settings.budget)
        self._training = Training()
        self._snapshots = Snapshots(self._training, memory_bytes=settings.snapshot_bytes)
        self._responder = Responder(writer, training=self._training, sites=sites, snapshots=self._snapshots)
        self._tape = Tape(
            is_state=self._training.is_state, on_forward=self._function_forward, on_error=self._tape_failed
        )
        self._loop_calls = LoopCalls(self._tape)
        self._lookout = Lookout(writer, sites=sites, budget=self._budget)
        self._facts = Facts(
            writer, self._training, sites=sites, budget=self._budget, kept_batches=settings.kept_batches
        )
        self._carried = CarriedGradients()
        self._tape.on_loss = self._see_loss_function
        self._tape.on_scalar = self._lookout.see_scalar
        self._memory: MemoryFollower | None = None
        self._handler = StepHandler(
            self._responder,
            settings,
            snapshots=self._snapshots,
            requests=Requests(writer.folder),
            replaying=self._replaying,
        )
        self._running: list[nn.Module] = []
        self._model_call: ModelCall | None = None
        self._step_call: StepCall | None = None
        self._error_before: BaseException | None = None
        self._leaves: list[Any] | None = None
        self._last_optimizer: Optimizer | None = None
        self._has_begun = False
        self._awaits_buffers = False
        self._loaders: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._is_handled = False
        self._is_replaying = False
        self._stopped = False
        self._began = time.perf_counter()

    @property
    def step(self) -> int:
        """The step that is open now."""
        return self._clock.step

    @property
    def num_undone(self) -> int:
        """How many steps were undone, with `on_anomaly="skip"`."""
        return self._handler.num_undone

    @property
    def anomalies(self) -> list[Anomaly]:
        """What was seen so far that cannot be right."""
        return self._lookout.anomalies

    @property
    def cost(self) -> float:
        """What the watch has cost, as a share of the training's time."""
        return self._budget.cost

    @property
    def seconds(self) -> float:
        """How long the training has been watched."""
        return time.perf_counter() - self._began

    def verdict(self) -> str:
        """Diagnose what was seen, and return the screen that `roundoff run` prints; to be called after the block."""
        from roundoff.watch.verdict import verdict_of  # which needs this file

        return verdict_of(self)[1]

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Know an optimizer before it steps."""
        self._training.add_optimizer(optimizer)

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
            self._tape.new_step(self._clock.step)
            self._snapshots.let_go()
            self._facts.let_go()
            self._last_optimizer = None
            self._writer.close(status=status)

    def note_exception(self, error: BaseException) -> None:
        """Take note that the training raised."""
        if isinstance(error, Exception) and not self._stopped:
            phase = PHASES[self._clock.phase]
            module = raising_module(error)
            site = None if module is None else self._sites.names[self._sites.of_module(module, 0)]
            detail = {**exception_detail(error), "site": site}
            self._lookout.note("exception", phase=phase, name=type(error).__name__, detail=detail)

    # -- LoopObserver: what the loop does ------------------------------------------------------------------------------

    def forward_enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note where the loop is; a call from the loop may close a step, and goes onto the tape."""
        running, clock = self._running, self._clock
        if running and module not in running:
            site = self._sites.of_module(module, 0)
            running.append(module)
            self._flight.enter(PHASES[clock.phase], self._sites.names[site])
            if len(running) == 2 and self._awaits_buffers:
                self._awaits_buffers = False
                self._facts.buffers_ready(clock.step, fully=self._is_fully_watched)
            return
        if self._is_replaying:
            self._flight.beat()
            return
        began = time.perf_counter()
        self._enter_from_loop(module, args)
        self._budget.spend(time.perf_counter() - began)

    def forward_leave(self, module: nn.Module, output: Any) -> None:
        """Note that the module has ended, and those inside it that never said so."""
        running = self._running
        if module not in running:
            return
        while running.pop() is not module:
            pass
        self._flight.leave(self._sites.names[self._sites.of_module(module, 0)])
        if running or self._is_replaying:
            return
        call, self._model_call = self._model_call, None
        if call is not None:
            self._tape.model_leave(call, output)
            call.raised = output is None and self._has_raised()
        if not torch.is_grad_enabled():
            self._lookout.see_eval_loss(output)
        self._tape.release()
        if self._clock.in_step and not self._clock.in_backward:
            self._clock.phase = Phase.OPTIMIZER

    def backward_enter(
        self, roots: tuple[Any, ...], *, is_part_of_forward: bool, arguments: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        """Keep the loss, look at it, and begin the backward phase."""
        if self._is_replaying:
            return
        is_nested = self._clock.in_backward
        if not is_nested and (self._running or self._clock.in_step):
            self._forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps())
        self._clock.backward_enter(is_part_of_forward=is_part_of_forward)
        self._tape.hold()
        if is_nested:
            return
        began = time.perf_counter()
        self._begin_step()
        self._flight.note(step=self._clock.step, phase="backward")
        if self._leaves is None:
            self.saw_training = True
            self._leaves = leaves_of(roots)
        loss = None if is_part_of_forward else self._lookout.see_loss(roots[0] if roots else None)
        if self._lookout.has_new:
            self._handler.ask(self._clock.step)
        accumulates = bool(arguments[1].get("accumulate_grad", True))
        if not is_part_of_forward and accumulates:
            self._take_gradients_of_start()
            self._tape.backward(roots, arguments[0], arguments[1], loss=loss)
            self._error_before = sys.exc_info()[1]
        if self._is_fully_watched and self._clock.microbatch == 0 and accumulates:
            with hidden_from_modes():
                self._carried.backward_begins()
        notes = {
            "is_part_of_forward": is_part_of_forward,
            "is_scaled": self._lookout.loss_scale.is_scaled(roots),
            "returns_gradients": not accumulates,
        }
        self._journal.call("backward", {name: True for name, holds in notes.items() if holds})
        self._budget.spend(time.perf_counter() - began)

    def backward_leave(self) -> None:
        """Count the microbatch."""
        if self._is_replaying:
            return
        if self._clock.backward_leave():
            self._facts.gradients_ready(self._clock.step)
        if not self._clock.in_backward and self._has_raised():
            self._tape.raised(Backward)
        if self._clock.is_over and not self._clock.in_step:
            self._tape.is_between = True
        self._tape.release()

    def step_enter(self, optimizer: Optimizer) -> None:
        """Look at the gradients as the optimizer sees them."""
        if self._is_replaying:
            return
        began = time.perf_counter()
        if self._running or self._clock.in_step:
            self._forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps() - 1)
        self.saw_training = True
        is_outermost = not self._clock.in_step
        self._clock.step_enter(optimizer)
        if not is_outermost:
            return
        self._begin_step()
        self._flight.note(step=self._clock.step, phase="optimizer")
        if self._training.add_optimizer(optimizer) and self._clock.step:
            self._snapshots.forget()  # it may have state that was not kept
        if not self._loop_calls.in_scaler_step:
            self._step_call = self._tape.step_enter(optimizer)
        self._lookout.see_gradients(optimizer, fully=self._is_fully_watched, always=self._settings.on_anomaly == "skip")
        self._tape.hold()
        self._facts.gradients_ready(self._clock.step, optimizer)
        name = self._facts.optimizer_name(optimizer)
        detail: dict[str, JsonValue] = {"optimizer": name, "lr": list(learning_rates(optimizer))}
        if self._loop_calls.in_scaler_step:
            detail["by_scaler"] = True
        if num_carried := self._carried.num_in(optimizer):
            detail["num_carried"] = num_carried
        if not optimizer.state:
            detail["is_fresh"] = True
        self._journal.call("step", detail)
        self._budget.spend(time.perf_counter() - began)

    def closure_enter(self) -> None:
        """Note what the closure does as a part of the step."""
        if not self._is_replaying and self._step_call is not None:
            self._tape.closure_enter(self._step_call)
            self._tape.release()

    def closure_leave(self) -> None:
        """Go back to the optimizer."""
        if not self._is_replaying and self._step_call is not None:
            self._tape.hold()
            self._tape.closure_leave()

    def step_leave(self, optimizer: Optimizer) -> None:
        """Count the attempt and look at what came of it."""
        if self._is_replaying:
            return
        self._clock.step_leave(optimizer, skipped=getattr(optimizer, "last_overflow", None) is not None)
        if self._clock.in_step:
            return
        self._last_optimizer = optimizer
        began = time.perf_counter()
        if self._step_call is not None and not self._step_call.closures:
            self._take_gradients_of_start()  # a second optimizer uses the backward of the step before
        self._step_call = None
        self._lookout.see_update()
        if self._is_fully_watched:
            self._carried.used(optimizer)
        self._budget.spend(time.perf_counter() - began)
        self._tape.release()
        if not self._loop_calls.in_scaler_step:
            self._end_attempt()

    def step_skipped(self, optimizer: Optimizer) -> None:
        """Count the attempt that a scaler did not let through."""
        if self._is_replaying:
            return
        self._clock.step_enter(optimizer)
        self._last_optimizer = optimizer
        self._lookout.drop_update()
        self._lookout.see_buffers(self._training.buffers())  # a skipped step leaves its statistics behind
        self._clock.step_leave(optimizer, skipped=True)
        self._journal.call("step", {"optimizer": self._facts.optimizer_name(optimizer), "skipped": True})
        self._end_attempt()

    def calling(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put a call of the loop onto the tape."""
        if self._is_replaying:
            return
        is_loops = not self._loop_calls.in_any and (not self._clock.in_step or self._tape.in_closure)
        if call == "optimizer_backward" and hasattr(args[0], "announce"):
            self._lookout.loss_scale.see_announced(args, kwargs)
            if is_loops:
                self._tape.loop_call(args[0].announce, args[1:2], {})
        self._loop_calls.begin(call, args, kwargs, is_loops=is_loops)

    def call_ended(self, call: str) -> None:
        """Look at the loop's own functions again."""
        if self._is_replaying:
            return
        self._loop_calls.end(call)
        if call == "scaler_step" and self._clock.num_attempts and not self._clock.skipped:
            self._end_attempt()

    def called(self, call: str, owner: Any, detail: dict[str, Any]) -> None:
        """Note what the loop did between forward, backward and step."""
        if call == "compile":
            self._responder.compiles = True
        if self._is_replaying or call in ("compile", "update", *OPTIMIZERS_OWN):
            return
        if call in ("scale", "unscale"):
            self._training.helpers.add(owner)
            self._lookout.loss_scale.see_scaler(owner)
        if call == "scale":
            self._lookout.loss_scale.see_scaled(detail["scaled"], detail["outputs"])
            return
        if call == "zero_grad":
            self._clock.zero_grad()
            self._carried.cleared()
        if call == "epoch":
            number = self._loaders.setdefault(owner, len(self._loaders))
            with hidden_from_modes():
                detail = {"loader": number, **detail, "content": content_of(owner.dataset)}
        if call == "load":
            self._sites.refresh()
            self._training.refresh()
            self._snapshots.forget()
        self._journal.call(call, {key: _plain(value) for key, value in detail.items()})

    def failed(self, error: Exception) -> None:
        """Stop watching with one warning; the training goes on."""
        if self._stopped:
            return
        self._stopped = True
        self._tape.hold()
        reason = f"{type(error).__name__}: {error}"
        self._writer.note(f"Watching stopped at step {self._clock.step}: {reason}")
        warnings.warn(
            f"roundoff stopped watching at step {self._clock.step}; the training goes on.\n  why: {reason}",
            RecordingStoppedWarning,
            stacklevel=2,
        )

    def other_thread(self) -> None:
        """Nothing: other threads are not watched."""

    # -- a step from its beginning to its end --------------------------------------------------------------------------

    def _enter_from_loop(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        running, clock = self._running, self._clock
        if running:
            self._forget_interrupted(num_modules=num_running_modules() - 1)
            if running:  # it calls itself
                running.append(module)
                return
        with_gradients = torch.is_grad_enabled()
        if not clock.in_backward:
            if clock.in_step:
                clock.correct_depth(num_running_steps())
            clock.sees_modules = self.saw_training = True
            if not clock.in_step:
                clock.forward(with_gradients=with_gradients)
            else:
                clock.phase = Phase.FORWARD if with_gradients else Phase.EVAL
        site = self._sites.of_module(module, None)
        if not clock.in_backward and (with_gradients or module.training):
            self._begin_step(module)
            self._model_call = self._tape.model_enter(module, args, keyword_arguments())
            self._error_before = sys.exc_info()[1]
            self._journal.call("forward", {"site": self._sites.names[site], "training": module.training})
            if is_loss(self._model_call) and self._is_fully_watched:
                self._facts.see_criterion(args)
            self._awaits_buffers = True
        self._tape.hold()
        running.append(module)
        self._flight.note(step=clock.step, phase=PHASES[clock.phase])
        self._flight.enter(PHASES[clock.phase], self._sites.names[site])

    def _function_forward(self) -> None:
        """Begin the forward of a loop that calls no module: it builds a graph again after a step."""
        self._clock.forward(with_gradients=True)
        self._begin_step()

    def _begin_step(self, module: nn.Module | None = None) -> None:
        """Do what is to be done once a step, before anything of it has been computed; new models may join later."""
        if module is not None and self._training.add_model(module) and self._has_begun:
            if self._snapshots.latest is not None and self._snapshots.latest.step == self._clock.step:
                self._snapshots.latest.state.join(self._training, self._training.tensors())
            else:
                self._snapshots.forget()
        if self._has_begun and module is not None and self._was_still_made() and self._tape.begin_again():
            self._snapshots.forget()
            self._has_begun = False
        if self._has_begun:
            if self._lookout.drop_suspect():
                self._handle_step(is_complete=False)
                self._is_handled = False
            return
        self._has_begun = True
        if not self._clock.step:
            self._training.find_optimizers()
        self._tape.begin()
        if not self._clock.step:
            self._memory = MemoryFollower(
                self._writer,
                model_bytes=_num_bytes(self._training.tensors()),
                own_bytes=lambda: self._snapshots.num_bytes,
            )
            self._handler.begin()
            self._facts.begin()
        if self._is_fully_watched or self._snapshots.is_due(self._clock.step):
            began = time.perf_counter()
            self._snapshots.take(self._clock.step)
            self._lookout.see_buffers(self._training.buffers())
            seconds = time.perf_counter() - began
            if num_ranks() == 1:
                self._snapshots.learn_cost(seconds, self._step_seconds())
            else:
                self._snapshots.interval = _INTERVAL_OF_RANKS

    def _has_raised(self) -> bool:
        """Say whether the call that ends now ends with an exception: one that was not there when it began."""
        error = sys.exc_info()[1]
        return error is not None and error is not self._error_before

    def _was_still_made(self) -> bool:
        """Say whether what was called so far may have been a part of a model, or a model that was only tried."""
        return not self._clock.step and not self._clock.has_begun and not self._clock.in_step

    @property
    def _is_fully_watched(self) -> bool:
        return self._clock.step < self._settings.full_steps or self._settings.every_step

    def _step_seconds(self) -> float:
        return self._budget.training_seconds / max(self.num_steps, 1)

    def _take_gradients_of_start(self) -> None:
        """Keep the gradients that this step adds to, unless they were cleared since it began."""
        latest = self._snapshots.latest
        if latest is None or latest.step != self._clock.step or self._clock.microbatch:
            return
        if not any(call.call == "zero_grad" for call in self._journal.open_calls):
            latest.state.take_gradients()

    def _end_attempt(self) -> None:
        """The optimizer has stepped, or a scaler has skipped it: record or investigate while everything is at hand."""
        self._tape.is_between = True
        self._handle_step(is_complete=True)

    def _handle_step(self, *, is_complete: bool) -> None:
        if self._is_handled or self._stopped:
            return
        self._is_handled = True
        self._lookout.end_attempt()
        reached = [leaf for kept in self._leaves or () if (leaf := kept()) is not None]
        self._facts.end_attempt(self._tape.so_far(), reached=reached, fully=self._is_fully_watched)
        began, num_undone = time.perf_counter(), self.num_undone
        self._journal.draw(self._sites)
        if self._lookout.has_new:
            self._journal.flush()
        self._handler.handle(self._tape.so_far(), self._lookout.take_new(), is_complete=is_complete)
        if self.num_undone > num_undone:
            self._journal.call("undone", {})
        self._budget.exempt(time.perf_counter() - began)

    @contextlib.contextmanager
    def _replaying(self) -> Iterator[None]:
        self._is_replaying = True
        self._tape.hold()
        self._flight.note(step=self._clock.step, phase="replay")
        try:
            with _eagerly():
                yield
        finally:
            self._is_replaying = False
            self._tape.release()
            self._flight.note(step=self._clock.step, phase=PHASES[self._clock.phase])

    def _close_step(self) -> None:
        began = time.perf_counter()
        self.num_steps += 1
        self._budget.count_step()
        if self._stopped:
            return
        self._handle_step(is_complete=False)
        with hidden_from_modes():
            metrics = self._journal.close_step(
                losses=self._lookout.losses,
                eval_losses=self._lookout.eval_losses,
                optimizer=self._last_optimizer,
                scale=self._lookout.loss_scale.value,
                grad_norm=self._lookout.grad_norm,
                update_norm=self._lookout.update_norm,
            )
            self._snapshots.add(self._tape.new_step(self._clock.step + 1))
        self._lookout.new_step(self._clock.step + 1)
        self._has_begun = self._is_handled = False
        if self._memory is not None:
            self._memory.step_closed(self._clock.step)
        self._flight.note(step=self._clock.step + 1, phase="forward")
        if self.num_steps == self._settings.full_steps:
            self._budget.start_anew()
        else:
            self._budget.spend(time.perf_counter() - began)
        self._journal.show(metrics)  # behind the budget: who asks for it wants all of it

    def _finish(self) -> None:
        try:
            self._lookout.drop_suspect()
            if self._has_begun or self._clock.has_begun:
                self._close_step()
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
        if self._handler.complaint is not None:
            self.complaints.append(self._handler.complaint)

    def _probe(self) -> None:
        """Run the probes on the last step, unless something went wrong or several ranks would have to join in."""
        step = self.num_steps - 1
        path = (
            None
            if self._stopped or self.anomalies or self._writer.info.ranks > 1
            else self._snapshots.path_to(step, among=[])
        )
        if path is None or self._settings.probe_seconds <= 0:
            return
        began = time.perf_counter()
        with self._replaying():
            bench = Bench(self._training, *path, self._sites)
            probes = Probes(self._writer, seconds=self._settings.probe_seconds)
            probes.run(bench, is_suspicious=not self._lookout.loss_has_fallen)
        self._budget.exempt(time.perf_counter() - began)

    def _forget_interrupted(self, *, num_modules: int, num_steps: int | None = None) -> None:
        """Leave modules and optimizer steps that an exception ended without a word."""
        had = bool(self._running)
        del self._running[num_modules:]
        if had and not self._running:
            self._flight.clear()
            self._model_call = None
            self._tape.release()
        if num_steps is not None:
            self._clock.correct_depth(num_steps)

    # -- small things ----------------------------------------------------------------------------------------------

    def _see_loss_function(self, args: tuple[Any, ...], result: Any) -> None:
        if not torch.is_grad_enabled():
            self._lookout.see_eval_loss(result)
        elif self._is_fully_watched:
            self._facts.see_criterion(args)

    def _tape_failed(self, error: Exception) -> None:
        self._tape.step.unfit = f"{type(error).__name__}: {error}"


def _num_bytes(tensors: list[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Have compiled code run eagerly inside the block; the compiler is not loaded for nothing."""
    if compiler_is_loaded():
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        yield


def _plain(value: Any) -> JsonValue:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value  # type: ignore[no-any-return]
