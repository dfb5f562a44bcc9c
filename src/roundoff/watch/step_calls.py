"""The steps of optimizers: gradients are looked at before, weights after, and then the attempt is over."""

from __future__ import annotations

import time

from torch.optim import Optimizer

from roundoff.record.loop.calls import learning_rates
from roundoff.record.torch_private import num_running_modules, num_running_steps
from roundoff.replay.step_tape import StepEntry
from roundoff.runs import JsonValue
from roundoff.watch.instruments import Instruments
from roundoff.watch.loop_calls import LoopCalls
from roundoff.watch.model_calls import ModelCalls
from roundoff.watch.step_course import StepCourse


class StepCalls:
    """Follows the steps of optimizers, the closures inside of them, and those that a scaler does not let through."""

    def __init__(self, on: Instruments, course: StepCourse, models: ModelCalls, loop_calls: LoopCalls) -> None:
        self.saw_any = False
        """Whether an optimizer ever stepped."""
        self._on = on
        self._course = course
        self._models = models
        self._loop_calls = loop_calls
        self._call: StepEntry | None = None

    def enter(self, optimizer: Optimizer) -> None:
        """Look at the gradients as the optimizer sees them."""
        on, clock = self._on, self._on.clock
        began = time.perf_counter()
        if self._models.is_any_running or clock.in_step:
            self._models.forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps() - 1)
        self.saw_any = True
        is_outermost = not clock.in_step
        clock.step_enter(optimizer)
        if not is_outermost:
            return
        self._course.begin()
        on.flight.note(step=clock.step, phase="optimizer")
        if on.training.add_optimizer(optimizer) and clock.step:
            on.snapshots.forget()  # it may have state that was not kept
        if not self._loop_calls.in_scaler_step:
            self._call = on.tape.step_enter(optimizer)
        on.lookout.see_gradients(optimizer, fully=on.is_fully_watched, always=on.settings.on_anomaly == "skip")
        on.tape.hold()
        on.facts.gradients_ready(clock.step, optimizer)
        on.journal.call("step", self._detail(optimizer))
        on.budget.spend(time.perf_counter() - began)

    def _detail(self, optimizer: Optimizer) -> dict[str, JsonValue]:
        name = self._on.facts.optimizer_name(optimizer)
        detail: dict[str, JsonValue] = {"optimizer": name, "lr": list(learning_rates(optimizer))}
        if self._loop_calls.in_scaler_step:
            detail["by_scaler"] = True
        if num_carried := self._on.carried.num_in(optimizer):
            detail["num_carried"] = num_carried
        if not optimizer.state:
            detail["is_fresh"] = True
        return detail

    def closure_enter(self) -> None:
        """Note what the closure does as a part of the step."""
        if self._call is not None:
            self._on.tape.closure_enter(self._call)
            self._on.tape.release()

    def closure_leave(self) -> None:
        """Go back to the optimizer."""
        if self._call is not None:
            self._on.tape.hold()
            self._on.tape.closure_leave()

    def leave(self, optimizer: Optimizer) -> None:
        """Count the attempt and look at what came of it."""
        on, clock = self._on, self._on.clock
        clock.step_leave(optimizer, skipped=getattr(optimizer, "last_overflow", None) is not None)
        if clock.in_step:
            return
        self._course.last_optimizer = optimizer
        began = time.perf_counter()
        if self._call is not None and not self._call.closures:
            self._course.take_gradients_of_start()  # a second optimizer uses the backward of the step before
        self._call = None
        on.lookout.see_update()
        if on.is_fully_watched:
            on.carried.used(optimizer)
        on.budget.spend(time.perf_counter() - began)
        on.tape.release()
        if not self._loop_calls.in_scaler_step:
            self._course.end_attempt()

    def skipped(self, optimizer: Optimizer) -> None:
        """Count the attempt that a scaler did not let through."""
        on, clock = self._on, self._on.clock
        clock.step_enter(optimizer)
        self._course.last_optimizer = optimizer
        on.lookout.drop_update()
        on.lookout.see_buffers(on.training.buffers())  # a skipped step leaves its statistics behind
        clock.step_leave(optimizer, skipped=True)
        on.journal.call("step", {"optimizer": on.facts.optimizer_name(optimizer), "skipped": True})
        self._course.end_attempt()
