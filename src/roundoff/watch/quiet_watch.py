"""Quiet steps: their usual course in as few calls as possible; anything unusual is followed as in other steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.loop.follower import is_in_training
from roundoff.record.loop.observer import FollowedModules
from roundoff.record.loop.step_clock import PHASES
from roundoff.runs import BackwardDetail, ZeroGradDetail
from roundoff.torch_private import is_hidden_from_dispatch
from roundoff.watch.watch import HOOKED_SECONDS, Watch, WatchState

_PLAIN_BACKWARD = BackwardDetail()


class QuietWatch(Watch):
    """A watch that follows quiet steps in a few microseconds; `Watch` alone gives the same run, at a higher cost.

    While `is_quiet`, the observer calls these methods first. One that returns False has done nothing, and what
    happened is followed by the usual hooks.
    """

    def _goes_on_quietly(self) -> bool:
        """Return whether a quiet step goes on in the loop itself, and nothing looks at what is computed.

        The conditions hold as long as only these methods are called, so they are checked once.
        """
        if not self.is_undisturbed:
            self.is_undisturbed = (
                self._step_is_open
                and self.clock.is_idle
                and not self.modules.running
                and not self._taping.opaque_calls
                and self._in_checks.is_on
                and self._in_journal.is_on
                and self._board is None
                and self.loss_scale.is_plain
                and self.loss_scale.value is None
            )
        return (
            self.is_undisturbed
            and not self._is_quiet_part
            and not self.ignores_loop
            and self._detector.suspect is None
            and not self._detector.reads_late
            and is_hidden_from_dispatch()
        )

    def _next_quiet_step(self) -> bool:
        """Close a quiet step and open another; False if that is not a quiet one. Does what `step_closed` does."""
        clock, detector, tape = self.clock, self._detector, self._tape
        step = clock.step
        if self.state is WatchState.FOLLOWING:  # a loop without an optimizer
            self._handle(is_complete=False)
        if step + 1 >= self._schedule.quiet_until or self.state is not WatchState.HANDLED:
            return False
        self.num_steps += 1
        self._budget.count_step(self.quiet_seconds + self._num_module_calls * HOOKED_SECONDS)
        self.quiet_seconds, self._num_module_calls = 0.0, 0
        self._in_journal.do_hidden(self._close_line)
        tape.stay_paused(step + 1)
        detector.new_step(step + 1)
        self.state = WatchState.FOLLOWING
        if self._memory is not None:
            self._in_memory.do_hidden(self._memory.step_closed, step)
        self._flight.mark(step + 1, "forward")
        clock.next_step()
        self._held = []
        self._num_heard_evaluations = 0
        tape.hears_losses = tape.is_between = False
        self.followed_modules = FollowedModules.FIRST
        return True

    def quiet_forward(self, module: nn.Module) -> bool:
        """Close a quiet step and open another, or go on with it."""
        if not self._goes_on_quietly() or module not in self._training.models:
            return False
        clock = self.clock
        with_gradients = torch.is_grad_enabled()
        if with_gradients and (clock.num_attempts or clock.is_over):
            if not self._next_quiet_step():
                return False
        elif (with_gradients or is_in_training(module)) and self.followed_modules is FollowedModules.FIRST:
            clock.forward(with_gradients=with_gradients)
            self._flight.mark(clock.step, PHASES[clock.phase])
        else:
            return False  # an evaluation
        clock.sees_modules = True
        self._num_module_calls += 1
        return True

    def quiet_backward(self, roots: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Look at the loss."""
        clock, detector = self.clock, self._detector
        self._is_quiet_part = is_plain = (
            len(roots) == 1
            and type(roots[0]) is Tensor
            and roots[0].numel() == 1
            and bool(kwargs.get("accumulate_grad", True))
            and self._goes_on_quietly()
            and (not clock.num_attempts or self._next_quiet_step())
        )
        if is_plain:
            clock.backward_enter()
            self._taping.backward_is_taped = False
            self._flight.mark(clock.step, "backward")
            self._in_checks.do_hidden(detector.see_loss, roots[0])
            if detector.new:
                self._in_replays(self._investigator.request, clock.step)
            self._journal.call("backward", _PLAIN_BACKWARD)
        return is_plain

    def quiet_backward_leave(self) -> bool:
        """Count the microbatch."""
        if not self._is_quiet_part:
            return False
        self._is_quiet_part = False
        clock = self.clock
        clock.backward_leave()
        if clock.is_over:  # a loop without an optimizer
            self._tape.is_between = True
        if self._stepped_in_backward:
            self._stepped_in_backward = False
            self._end_attempt()
        return True

    def quiet_step(self, optimizer: Optimizer) -> bool:
        """Look at the gradients as far as the budget allows."""
        clock, detector = self.clock, self._detector
        self._is_quiet_part = is_plain = (
            not clock.num_attempts
            and self._goes_on_quietly()
            and self._num_groups.get(optimizer) == len(optimizer.param_groups)
        )
        if is_plain:
            clock.step_enter(optimizer)
            self._flight.mark(clock.step, "optimizer")
            if detector.next_look <= clock.step:
                self._in_checks.do_hidden(detector.see_gradients, optimizer, fully=False, always=False)
            self._in_journal.do_hidden(self._note_step, optimizer)
        return is_plain

    def quiet_step_leave(self, optimizer: Optimizer) -> bool:
        """Count the attempt."""
        if not self._is_quiet_part:
            return False
        self._is_quiet_part = False
        self._leave_step(optimizer)
        if self._detector.measures.has_begun:
            self._in_checks(self._detector.see_update)
        self._end_attempt()
        return True

    def quiet_zero_grad(self, owner: Any) -> bool:
        """Note that an optimizer's gradients were cleared."""
        if self.ignores_loop or not self._in_journal.is_on or not isinstance(owner, Optimizer):
            return False
        self.clock.zero_grad(owner)
        self._uncleared.note_cleared(owner)
        self._journal.call("zero_grad", ZeroGradDetail(of=self._name_of(owner)))
        return True
