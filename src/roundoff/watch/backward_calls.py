"""The loop's calls of backward: the loss is looked at before its gradients are computed."""

from __future__ import annotations

import sys
import time
from typing import Any

from roundoff.record.loop.step_clock import find_leaves
from roundoff.record.torch_private import hidden_from_modes, num_running_modules, num_running_steps
from roundoff.replay.step_tape import BackwardEntry
from roundoff.watch.exceptions import has_raised_since
from roundoff.watch.instruments import Instruments
from roundoff.watch.model_calls import ModelCalls
from roundoff.watch.step_course import StepCourse


class BackwardCalls:
    """Follows the runs of the autograd engine; those inside one another are a part of the outermost."""

    def __init__(self, on: Instruments, course: StepCourse, models: ModelCalls) -> None:
        self._on = on
        self._course = course
        self._models = models
        self._is_taped = False
        self._error_before: BaseException | None = None

    def enter(
        self, roots: tuple[Any, ...], arguments: tuple[tuple[Any, ...], dict[str, Any]], *, is_part_of_forward: bool
    ) -> None:
        """Keep the loss, look at it, and begin the backward phase."""
        on, clock = self._on, self._on.clock
        is_nested = clock.in_backward
        if not is_nested and (self._models.is_any_running or clock.in_step):
            self._models.forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps())
        clock.backward_enter(is_part_of_forward=is_part_of_forward)
        on.tape.hold()
        if is_nested:
            return
        began = time.perf_counter()
        self._course.begin()
        on.flight.note(step=clock.step, phase="backward")
        if on.leaves is None:
            on.leaves = find_leaves(roots)
        loss = None if is_part_of_forward else on.lookout.see_loss(roots[0] if roots else None)
        if on.lookout.has_new:
            self._course.handler.ask(clock.step)
        accumulates = bool(arguments[1].get("accumulate_grad", True))
        self._is_taped = not is_part_of_forward and accumulates
        self._error_before = sys.exc_info()[1]
        if self._is_taped:
            self._course.take_gradients_of_start()
            on.tape.backward(roots, arguments[0], arguments[1], loss=loss)
        if on.is_fully_watched and clock.microbatch == 0 and accumulates:
            with hidden_from_modes():
                on.carried.backward_begins()
        notes = {
            "is_part_of_forward": is_part_of_forward,
            "is_scaled": on.lookout.loss_scale.is_scaled(roots),
            "returns_gradients": not accumulates,
        }
        on.journal.call("backward", {name: True for name, holds in notes.items() if holds})
        on.budget.spend(time.perf_counter() - began)

    def leave(self) -> None:
        """Count the microbatch."""
        on, clock = self._on, self._on.clock
        if clock.backward_leave():
            on.facts.gradients_ready(clock.step)
        if self._is_taped and not clock.in_backward and has_raised_since(self._error_before):
            on.tape.raised(BackwardEntry)
        if clock.is_over and not clock.in_step:
            on.tape.is_between = True
        on.tape.release()
