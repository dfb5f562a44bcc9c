"""The calls of models: those of the loop go onto the tape, and where it is inside of them, into the flight recorder."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import nn

from roundoff.record.loop.step_clock import PHASES, Phase
from roundoff.record.torch_private import keyword_arguments, num_running_modules, num_running_steps
from roundoff.replay.step_tape import ModelEntry
from roundoff.watch.exceptions import has_raised_since
from roundoff.watch.facts.step_batch import is_loss
from roundoff.watch.instruments import Instruments
from roundoff.watch.step_course import StepCourse


class ModelCalls:
    """Follows the modules that are running; what the loop itself calls may begin or close a step."""

    def __init__(self, on: Instruments, course: StepCourse) -> None:
        self.saw_any = False
        """Whether the loop ever called a model."""
        self._on = on
        self._course = course
        self._running: list[nn.Module] = []
        self._call: ModelEntry | None = None
        self._error_before: BaseException | None = None
        self._awaits_buffers = False

    @property
    def is_any_running(self) -> bool:
        """Whether a module is running, as far as it has been told."""
        return bool(self._running)

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note where the loop is; a call from the loop may close a step, and goes onto the tape."""
        on, running = self._on, self._running
        if running and module not in running:
            site = on.sites.of_module(module, 0)
            running.append(module)
            on.flight.enter(PHASES[on.clock.phase], on.sites.names[site])
            if len(running) == 2 and self._awaits_buffers:
                self._awaits_buffers = False
                on.facts.buffers_ready(on.clock.step, fully=on.is_fully_watched)
            return
        if self._course.is_replaying:
            on.flight.beat()
            return
        began = time.perf_counter()
        self._enter_from_loop(module, args)
        on.budget.spend(time.perf_counter() - began)

    def leave(self, module: nn.Module, output: Any) -> None:
        """Note that the module has ended, and those inside it that never said so."""
        on, running = self._on, self._running
        if module not in running:
            return
        while running.pop() is not module:
            pass
        on.flight.leave(on.sites.names[on.sites.of_module(module, 0)])
        if running or self._course.is_replaying:
            return
        call, self._call = self._call, None
        if call is not None:
            on.tape.model_leave(call, output)
            call.raised = output is None and has_raised_since(self._error_before)
        if not torch.is_grad_enabled():
            on.lookout.see_eval_loss(output)
        on.tape.release()
        if on.clock.in_step and not on.clock.in_backward:
            on.clock.phase = Phase.OPTIMIZER

    def forget_interrupted(self, *, num_modules: int, num_steps: int | None = None) -> None:
        """Leave modules and optimizer steps that an exception ended without a word.

        Args:
            num_modules: how many modules are really running.
            num_steps: how many optimizer steps are, if that is to be corrected, too.
        """
        had = bool(self._running)
        del self._running[num_modules:]
        if had and not self._running:
            self._on.flight.clear()
            self._call = None
            self._on.tape.release()
        if num_steps is not None:
            self._on.clock.correct_depth(num_steps)

    def _enter_from_loop(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        on, running, clock = self._on, self._running, self._on.clock
        if running:
            self.forget_interrupted(num_modules=num_running_modules() - 1)
            if running:  # it calls itself
                running.append(module)
                return
        with_gradients = torch.is_grad_enabled()
        if not clock.in_backward:
            self._begin_forward(with_gradients=with_gradients)
        site = on.sites.of_module(module, None)
        if not clock.in_backward and (with_gradients or module.training):
            self._course.begin(module)
            self._tape(module, args, site=on.sites.names[site])
        on.tape.hold()
        running.append(module)
        on.flight.note(step=clock.step, phase=PHASES[clock.phase])
        on.flight.enter(PHASES[clock.phase], on.sites.names[site])

    def _begin_forward(self, *, with_gradients: bool) -> None:
        clock = self._on.clock
        if clock.in_step:
            clock.correct_depth(num_running_steps())
        clock.sees_modules = self.saw_any = True
        if not clock.in_step:
            clock.forward(with_gradients=with_gradients)
        else:
            clock.phase = Phase.FORWARD if with_gradients else Phase.EVAL

    def _tape(self, module: nn.Module, args: tuple[Any, ...], *, site: str) -> None:
        on = self._on
        self._call = on.tape.model_enter(module, args, keyword_arguments())
        self._error_before = sys.exc_info()[1]
        on.journal.call("forward", {"site": site, "training": module.training})
        if is_loss(self._call) and on.is_fully_watched:
            on.facts.see_criterion(args)
        self._awaits_buffers = True
