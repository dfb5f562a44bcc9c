"""One recording under way: follows the loop, turns the recorder on and off, and has each step written as it closes."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal
from weakref import ref

from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.event_selection import EventFilter, EventSelection
from roundoff.record.loop.calls import detail_to_json, learning_rates
from roundoff.record.loop.loss_scale import LossScale
from roundoff.record.loop.observer import OPTIMIZERS_OWN, observing_loop
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import StepClock, find_leaves, has_optimizer
from roundoff.record.ops.mode_switch import ModeSwitch
from roundoff.record.ops.recorder import NamedTensors, OpRecorder
from roundoff.record.ops.step_writer import StepWriter, grad_norm
from roundoff.record.process_info import note_environment
from roundoff.record.reference import OpJudge
from roundoff.record.source_lines import Sources
from roundoff.record.torch_private import (
    compiler_is_loaded,
    correct_mode_flags,
    hidden_from_modes,
    is_transformed,
    keyword_arguments,
    num_running_modules,
    num_running_steps,
)
from roundoff.runs import Call, JsonValue, Metrics, RecordingStoppedWarning, RunWriter
from roundoff.words import plural


class Recording:
    """Follows the loop, turns the recorder on and off, and has each step written as it closes."""

    def __init__(
        self,
        *,
        writer: RunWriter,
        selection: EventSelection,
        sites: Sites,
        with_tensors: bool,
        inputs: bool,
        histograms: bool,
        reference: OpJudge | None,
        sources: Sources | None,
        strict: bool,
        first_step: int = 0,
    ) -> None:
        self.folder = writer.folder
        self.complaints: list[str] = []
        """What was asked for and never came; known when the block has ended."""
        self.num_steps = 0
        """How many steps the loop took, recorded or not."""
        self.saw_training = False
        """Whether a model was called, something went backward or an optimizer stepped."""
        self.training_failed = False
        """To be set where the training fails without an exception that leaves the block."""
        self._writer = writer
        self._selection = selection
        self._sites = sites
        self._reference = reference
        self._filter = None if selection.takes_everything else EventFilter(selection)
        self._strict = strict
        self._clock = StepClock(self._close_step, has_optimizer=lambda: has_optimizer(self._leaves or ()))
        self._clock.step = first_step
        self._recorder = OpRecorder(
            sites=sites,
            clock=self._clock,
            wanted=self._filter,
            inputs=inputs,
            reference=reference,
            sources=sources,
            on_row=self._write_tensor if with_tensors else None,
            histograms=histograms,
            on_forward=self._function_forward,
            on_error=self.failed,
        )
        self._named = NamedTensors(self._recorder, sites=sites, clock=self._clock)
        self._steps = StepWriter(writer, sites=sites, sources=sources)
        self._mode = ModeSwitch(self._recorder)
        self._stopped = False
        self._recorded: set[int] = set()
        self._compiled_steps: set[int] = set()
        self._began = time.perf_counter()
        self._step_began = self._began
        self._leaves: list[ref[Tensor]] | None = None
        self._other_threads = False
        self._loss_scale = LossScale()
        self._last_optimizer: Optimizer | None = None
        self._losses: list[Tensor] = []
        self._has_begun = False

    @property
    def step(self) -> int:
        """The step that is open now."""
        return self._clock.step

    @property
    def num_recorded(self) -> int:
        """How many steps have been recorded so far."""
        return len(self._recorded)

    @property
    def first_recorded(self) -> int:
        """The first step that has been recorded."""
        return min(self._recorded)

    @property
    def num_rows(self) -> int:
        """How many events of the open step there are so far: the place of the next one."""
        return len(self._recorder.rows)

    @property
    def num_events(self) -> int:
        """How many events have been written so far."""
        return self._steps.num_events

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Follow the loop inside the block; at its end write what is left and note what never came."""
        status: Literal["finished", "failed"] = "failed"
        try:
            with observing_loop(self):
                self._switch(on=self._selection.wants_step(self._clock.step))
                yield
            if not self.training_failed:
                status = "finished"
        finally:
            self._finish(status)

    # -- LoopObserver: what the loop does ------------------------------------------------------------------------------

    def forward_enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Push the module's site; a call from the loop may close a step."""
        mode, clock = self._recorder, self._clock
        by_loop = mode.is_called_by_loop(module)
        if by_loop and not clock.sees_modules:
            clock.sees_modules = self.saw_training = True
            self._switch(on=self._mode.is_on)
        site = mode.enter(module, by_loop=by_loop)
        if by_loop and self._mode.is_on:
            self._begin_step()
            self._named.take_inputs(site, (args, keyword_arguments()))

    def forward_leave(self, module: nn.Module, output: Any) -> None:
        """Pop the module's site, and those of modules inside it that never said that they ended."""
        self._recorder.leave(module)

    def backward_enter(
        self, roots: tuple[Any, ...], *, is_part_of_forward: bool, arguments: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        """Keep the loss and begin the backward phase."""
        is_nested = self._clock.in_backward
        if not is_nested and (self._recorder.running or self._clock.in_step):
            self._recorder.forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps())
        self._clock.backward_enter(is_part_of_forward=is_part_of_forward)
        if is_nested:
            return
        self._mode.place()
        if self._leaves is None:
            self.saw_training = True
            self._leaves = find_leaves(roots)
        if self._mode.is_on:
            self._begin_step()
        if not is_part_of_forward:
            self._keep_loss(roots[0] if roots else None)
        notes = {
            "is_part_of_forward": is_part_of_forward,
            "returns_gradients": not arguments[1].get("accumulate_grad", True),
        }
        self._call("backward", {name: True for name, holds in notes.items() if holds})

    def backward_leave(self) -> None:
        """Count the microbatch."""
        if not self._clock.backward_leave():
            return
        if self._mode.is_on:
            with self._unseen():
                self._recorder.take_pending()
            self._recorder.learn_gradients(self._sites.parameters())
        self._recorder.new_microbatch()
        self._await_forward()

    def step_enter(self, optimizer: Optimizer) -> None:
        """Take the gradients as the optimizer sees them."""
        if self._recorder.running or self._clock.in_step:
            self._recorder.forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps() - 1)
        self.saw_training = True
        self._mode.place()
        self._clock.step_enter(optimizer)
        if self._mode.is_on:
            self._begin_step()
            self._named.take_gradients(optimizer)
            self._recorder.begin_optimizer(optimizer)
        self._call("step", {"optimizer": type(optimizer).__name__, "lr": list(learning_rates(optimizer))})

    def step_leave(self, optimizer: Optimizer) -> None:
        """Count the attempt."""
        self._recorder.end_optimizer()
        self._last_optimizer = optimizer
        self._clock.step_leave(optimizer, skipped=getattr(optimizer, "last_overflow", None) is not None)
        self._await_forward()

    def step_skipped(self, optimizer: Optimizer) -> None:
        """Count the attempt that a scaler did not let through."""
        self._clock.step_enter(optimizer)
        if self._mode.is_on:
            self._begin_step()
            self._named.take_gradients(optimizer)
        self._last_optimizer = optimizer
        self._clock.step_leave(optimizer, skipped=True)
        self._await_forward()
        self._call("step", {"optimizer": type(optimizer).__name__, "skipped": True})

    def closure_enter(self) -> None:
        """Nothing: the forward inside a closure says enough."""

    def closure_leave(self) -> None:
        """Nothing."""

    def calling(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the loss that an optimizer with a scale of its own goes backward from; others are noted afterwards."""
        if call == "optimizer_backward" and hasattr(args[0], "announce"):
            self._loss_scale.see_announced(args, kwargs)

    def call_ended(self, call: str) -> None:
        """Nothing."""

    def called(self, call: str, owner: Any, detail: dict[str, Any]) -> None:
        """Note what the loop did between forward, backward and step."""
        self._mode.place()
        if call in ("compile", "update", *OPTIMIZERS_OWN):
            return
        if call in ("scale", "unscale"):
            self._loss_scale.see_scaler(owner)
        if call == "scale":
            self._loss_scale.see_scaled(detail["scaled"], detail["outputs"])
            return
        if call == "zero_grad":
            self._clock.zero_grad()
            self._recorder.end_optimizer()
        if call == "load":
            self._sites.refresh()
        with self._unseen():
            self._call(call, detail_to_json(detail))

    def failed(self, error: Exception) -> None:
        """Stop recording with one warning; the training goes on, unless the recording is strict."""
        if self._stopped:
            return
        self._stop()
        if self._strict:
            raise error
        reason = f"{type(error).__name__}: {error}"
        self._writer.note(f"Recording stopped at step {self._clock.step}: {reason}")
        if self._writer.stopped is not None:
            return  # it has warned
        warnings.warn(
            f"roundoff stopped recording to '{self.folder}' at step {self._clock.step}; the training goes on.\n"
            f"  why: {reason}",
            RecordingStoppedWarning,
            stacklevel=2,
        )

    def other_thread(self) -> None:
        """Remember that there is more than is recorded."""
        self._other_threads = True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _function_forward(self) -> None:
        """Begin the forward of a loop that calls no module: it builds a graph again after a backward or a step."""
        self._clock.forward(with_gradients=True)
        if self._mode.is_on:
            self._begin_step()

    def _await_forward(self) -> None:
        """Get ready for a forward that may be the first of a step to record: compiled, it would show nothing."""
        self._recorder.await_forward()
        if compiler_is_loaded() and not self._mode.is_on and self._clock.ends_at_forward:
            self._mode.await_step(is_wanted=self._selection.wants_step(self._clock.step + 1))

    def _begin_step(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        if not self._writer.info.environment:
            note_environment(self._writer)
        self._sites.refresh()
        self._named.take_parameters()

    def _close_step(self) -> None:
        self.num_steps += 1
        if self._stopped:
            return
        with self._unseen():
            norm = self._write_step() if self._mode.is_on else None
            self._write_metrics(norm)
        self._has_begun = False
        self._named.new_step()
        self._losses.clear()
        self._loss_scale.value = None
        self._step_began = time.perf_counter()
        if self._writer.stopped is not None:
            self._stop()
        else:
            self._switch(on=self._can_record(self._clock.step + 1))

    def _write_step(self) -> float | None:
        self._named.take_gradients(None)
        rows = self._recorder.new_step()
        self._steps.write_step(self._clock.step, self._recorder, rows)
        if self._writer.stopped is None:
            self._recorded.add(self._clock.step)
        return grad_norm(rows)

    def _write_metrics(self, norm: float | None) -> None:
        clock = self._clock
        rates = learning_rates(self._last_optimizer) if clock.num_attempts else []
        losses = [float(loss) for loss in self._losses]
        scale = self._loss_scale.value
        self._writer.write(
            Metrics(
                step=clock.step,
                loss=math.fsum(losses) / len(losses) if losses else None,
                lr=rates[0] if rates else None,
                loss_scale=None if scale is None else float(scale),
                skipped=clock.skipped,
                grad_norm=norm,
                seconds=time.perf_counter() - self._step_began,
                optimizer=clock.optimizer,
            )
        )

    def _switch(self, *, on: bool) -> None:
        """Turn the recorder on or off.

        In a loop that calls no module it stays there between the steps to record, to hear when a forward begins.
        """
        clock = self._clock
        can_hear = not clock.sees_modules and not self._stopped
        clock.hears_functions = can_hear and (on or self._selection.has_steps_after(clock.step))
        self._mode.turn(on=on, listening=clock.hears_functions)

    def _can_record(self, step: int) -> bool:
        """Say whether a step is wanted; one that begins inside compiled code can no longer be made to run eagerly."""
        if not self._selection.wants_step(step):
            return False
        if self._mode.can_record:
            return True
        self._compiled_steps.add(step)
        return False

    def _stop(self) -> None:
        self._stopped = True
        self._switch(on=False)
        self._steps.discard()

    def _finish(self, status: Literal["finished", "failed"]) -> None:
        try:
            if self._has_begun or self._clock.has_begun or (self._mode.is_on and len(self._recorder.rows)):
                self._close_step()
            if status == "finished":
                self.complaints = self._find_complaints()
        except Exception as error:
            self.failed(error)
        finally:
            self._clock.sees_modules = True
            self._switch(on=False)
            correct_mode_flags()  # a mode entered inside the block restored what it had found when it was left
            self._steps.discard()
            for complaint in self.complaints:
                self._writer.note(complaint)
            self._writer.close(status=status)

    def _find_complaints(self) -> list[str]:
        if self._stopped:
            return []
        found: list[str] = []
        if self._compiled_steps:
            found.append(f"step {min(self._compiled_steps)} began inside compiled code, where it cannot be recorded.")
        missing = self._selection.first_missing(self._recorded | self._compiled_steps, 2)
        if self.num_steps == 0:
            elsewhere = " It ran in another thread, which a recording does not follow." if self._other_threads else ""
            found.append(f"no training step was seen, so nothing was recorded.{elsewhere}")
        elif missing:
            which = f"step {missing[0]} was" if len(missing) == 1 else f"steps from {missing[0]} on were"
            taken = plural(self.num_steps, "step")
            found.append(f"{which} never reached: the loop took {taken}.")
        if self._filter is not None and self._recorded:
            found.extend(f"{complaint}." for complaint in self._filter.complaints())
        if unreadable := self._recorder.num_unreadable:
            tensors = plural(unreadable, "tensor")
            found.append(f"{tensors} could not be read (fake, nested, or of a foreign subclass).")
        if left_out := self._steps.left_out:
            tensors = "1 tensor is" if left_out.total() == 1 else f"{left_out.total()} tensors are"
            found.append(
                f"{tensors} not in the files of whole tensors, which cannot hold {', '.join(sorted(left_out))}."
            )
        if self._reference is not None:
            found.extend(f"{op} has no reference: {why}" for op, why in sorted(self._reference.not_judged.items()))
        return found

    # -- small things --------------------------------------------------------------------------------------------------

    def _write_tensor(self, x: Tensor, place: int) -> None:
        self._steps.write_tensor(self._clock.step, self._recorder, x, place)

    def _keep_loss(self, root: Any) -> None:
        """Keep the loss that backward starts from, without the factor a scaler put on it."""
        if isinstance(root, Tensor):
            loss = self._loss_scale.without_scale(root)
            if root.numel() == 1 and not is_transformed(root):
                with self._unseen():
                    self._losses.append(loss.detach().clone())
        self._loss_scale.forget_losses()

    def _call(self, call: str, detail: dict[str, JsonValue]) -> None:
        clock = self._clock
        seconds = time.perf_counter() - self._began
        self._writer.write(
            Call(step=clock.step, call=call, microbatch=clock.microbatch, seconds=seconds, detail=detail)
        )

    @contextlib.contextmanager
    def _unseen(self) -> Iterator[None]:
        """Keep ops of our own out of the recording."""
        with hidden_from_modes():
            yield
