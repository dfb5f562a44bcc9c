"""Follows a training loop: steps, running modules, the loss scale and interrupted calls are worked out here, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.loop.calls import LoopCall, LoopCallKind, LossScaling
from roundoff.record.loop.loss_scale import LossScale
from roundoff.record.loop.module_stack import ModuleCall, ModuleStack
from roundoff.record.loop.scaled_optimizer import as_scaled
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import Phase, StepClock, find_leaves, has_optimizer
from roundoff.record.torch_private import num_running_modules, num_running_steps
from roundoff.runs import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardCall:
    """One run of the autograd engine."""

    roots: tuple[Any, ...]
    """What it starts from."""
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    """The engine's other arguments."""
    is_nested: bool
    """Whether it runs inside another; nothing but the roots is known then."""
    is_part_of_forward: bool
    """Whether its gradients will be differentiated themselves, as those of a gradient penalty are."""
    loss: Tensor | None = None
    """The number it starts from, without its loss scale; None if it starts from something else."""
    scale: Tensor | None = None
    """What the loss was multiplied with; None if with nothing."""
    is_scaled: bool = False
    """Whether a GradScaler made the root."""

    @property
    def accumulates(self) -> bool:
        """Whether the gradients go into `.grad`, rather than back to the caller."""
        return bool(self.arguments[1].get("accumulate_grad", True))

    def detail(self) -> dict[str, JsonValue]:
        """Return what a run says about it: only what is not as usual."""
        notes = {
            "is_part_of_forward": self.is_part_of_forward,
            "is_scaled": self.is_scaled,
            "returns_gradients": not self.accumulates,
        }
        return {name: True for name, holds in notes.items() if holds}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAttempt:
    """One call of an optimizer's `step`."""

    optimizer: Optimizer
    is_nested: bool
    """Whether another optimizer's `step` has called it."""
    was_skipped: bool = False
    """Whether the optimizer left the weights as they were, because of an overflow."""


class LoopFollower:
    """Knows where a loop is, and calls one hook for each thing that happens; subclasses override those they need.

    This is the only `LoopObserver`: what a step, a microbatch, a running module and an interrupted call are is decided
    here and in `StepClock`. Hooks are called when `clock`, `modules` and `loss_scale` are up to date.
    """

    opens_with_evaluation: ClassVar[bool] = True
    """Whether a forward in eval mode without gradients opens a step, if none is open."""

    def __init__(self, *, sites: Sites | None = None, first_step: int = 0) -> None:
        self.sites = Sites() if sites is None else sites
        self.modules = ModuleStack()
        self.loss_scale = LossScale()
        self.clock = StepClock(self.close_step, has_optimizer=lambda: has_optimizer(self.leaves or ()))
        self.clock.step = first_step
        self.leaves: list[ref[Tensor]] | None = None
        """What the first backward leads to; None before it."""
        self.last_optimizer: Optimizer | None = None
        """The last one that stepped, or that a scaler did not let step."""
        self.num_steps = 0
        """How many steps have closed."""
        self.saw_training = False
        """Whether a model was called, something went backward or an optimizer stepped."""
        self.has_other_threads = False
        """Whether something happened in a thread that is not followed."""
        self.ignores_loop = False
        """Whether what the loop seems to do is our own doing, such as a replay."""
        self._step_is_open = False

    @property
    def step(self) -> int:
        """The step that is open now."""
        return self.clock.step

    @property
    def is_open(self) -> bool:
        """Whether a step has begun that has not closed."""
        return self._step_is_open or self.clock.has_begun

    # -- hooks: these do nothing unless a subclass overrides them ------------------------------------------------------

    def step_opened(self, module: nn.Module | None) -> None:
        """A step begins, with a call of `module` by the loop or (None) without one; nothing of it is computed yet."""

    def step_continued(self, module: nn.Module | None) -> None:
        """The open step goes on with another forward, backward or optimizer step."""

    def step_closed(self, step: int) -> None:
        """A step has ended; `clock` still is what it was at its end."""

    def module_called(self, call: ModuleCall, args: tuple[Any, ...]) -> None:
        """A module is about to run; this is called often."""

    def module_returned(self, call: ModuleCall, output: Any) -> None:
        """A module has run, or raised (then `output` is None)."""

    def module_ignored(self) -> None:
        """A module is about to run, by our own doing."""

    def modules_interrupted(self) -> None:
        """An exception ended the outermost module without a word, some time ago."""

    def backward_began(self, backward: BackwardCall) -> None:
        """The autograd engine starts."""

    def backward_ended(self, *, is_microbatch: bool) -> None:
        """The autograd engine has ended, or raised; `is_microbatch` if that ends a microbatch."""

    def optimizer_began(self, attempt: StepAttempt) -> None:
        """An optimizer's `step` begins."""

    def optimizer_ended(self, attempt: StepAttempt) -> None:
        """An optimizer's `step` has ended."""

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        """A GradScaler did not let an optimizer step."""

    def closure_began(self) -> None:
        """An optimizer calls the closure it was given."""

    def closure_ended(self) -> None:
        """The closure has ended, or raised."""

    def loop_calling(self, kind: LoopCallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The loop begins one of the calls that `loop_called` reports, or a scaler's step."""

    def loop_call_ended(self, kind: LoopCallKind) -> None:
        """What `loop_calling` announced has ended, or raised."""

    def loop_called(self, call: LoopCall) -> None:
        """The loop has made a call other than of a model, backward or an optimizer's step."""

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def failed(self, error: Exception) -> None:
        """A hook raised: following must end, the training must not."""
        raise NotImplementedError from error

    def function_forward(self) -> None:
        """Begin the forward of a loop that calls no module: it builds a graph again after a backward or a step."""
        self.clock.forward(with_gradients=True)
        self._enter_step(None)

    def close_step(self) -> None:
        """Close the step that is open."""
        self.num_steps += 1
        self.step_closed(self.clock.step)
        self._step_is_open = False
        self.loss_scale.new_step()

    # -- LoopObserver: what the loop does ------------------------------------------------------------------------------

    def forward_enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Push the module's site; a call from the loop may close a step and open another."""
        if self.ignores_loop:
            self.module_ignored()
            return
        modules = self.modules
        if module in modules.running:  # it calls itself, or was interrupted and never left
            self._forget_interrupted(num_modules=num_running_modules() - 1)
        stack = modules.sites
        is_by_loop = not stack and not self.clock.in_backward
        if is_by_loop:
            self._begin_forward()
        call = modules.push(module, self.sites.of_module(module, stack[-1] if stack else None), is_by_loop)
        if is_by_loop and (self.opens_with_evaluation or torch.is_grad_enabled() or module.training):
            self._enter_step(module)
        self.module_called(call, args)

    def forward_leave(self, module: nn.Module, output: Any) -> None:
        """Pop the module's site, and those of modules inside it that never said that they ended."""
        if self.ignores_loop:
            return
        call = self.modules.pop(module)
        if call is None:
            return
        clock = self.clock
        if not call.depth and clock.in_step and not clock.in_backward:
            clock.phase = Phase.OPTIMIZER  # a closure has called it
        self.module_returned(call, output)

    def backward_enter(
        self, roots: tuple[Any, ...], *, is_part_of_forward: bool, arguments: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        """Begin the backward phase; a backward inside another is a part of it."""
        if self.ignores_loop:
            return
        clock = self.clock
        is_nested = clock.in_backward
        if not is_nested and (self.modules.running or clock.in_step):
            self._forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps())
        loss = scale = None
        is_scaled = not is_nested and self.loss_scale.is_scaled(roots)
        if not is_nested and not is_part_of_forward and roots and isinstance(roots[0], Tensor):
            plain = self.loss_scale.without_scale(roots[0])
            loss = plain if roots[0].numel() == 1 else None
            scale = self.loss_scale.value if is_scaled or plain is not roots[0] else None
        clock.backward_enter(is_part_of_forward=is_part_of_forward)
        if not is_nested:
            if scale is not None:
                self.loss_scale.value = scale  # forgotten, if this backward has closed a step
            self.saw_training = True
            if self.leaves is None:
                self.leaves = find_leaves(roots)
            self._enter_step(None)
        self.backward_began(
            BackwardCall(
                roots=roots,
                arguments=arguments,
                is_nested=is_nested,
                is_part_of_forward=is_part_of_forward,
                loss=loss,
                scale=scale,
                is_scaled=is_scaled,
            )
        )

    def backward_leave(self) -> None:
        """Count the microbatch."""
        if not self.ignores_loop:
            self.backward_ended(is_microbatch=self.clock.backward_leave())

    def step_enter(self, optimizer: Optimizer) -> None:
        """Begin an optimizer's attempt; a second one of the loop closes the step before."""
        if self.ignores_loop:
            return
        clock = self.clock
        if self.modules.running or clock.in_step:
            self._forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps() - 1)
        self.saw_training = True
        is_nested = clock.in_step
        clock.step_enter(optimizer)
        if not is_nested:
            self._enter_step(None)
        self.optimizer_began(StepAttempt(optimizer=optimizer, is_nested=is_nested))

    def step_leave(self, optimizer: Optimizer) -> None:
        """Count the attempt."""
        if self.ignores_loop:
            return
        scaled = as_scaled(optimizer)
        was_skipped = scaled is not None and scaled.last_overflow is not None
        self.clock.step_leave(optimizer, skipped=was_skipped)
        self.last_optimizer = optimizer
        self.optimizer_ended(StepAttempt(optimizer=optimizer, is_nested=self.clock.in_step, was_skipped=was_skipped))

    def step_skipped(self, optimizer: Optimizer) -> None:
        """Count the attempt that a scaler did not let through."""
        if self.ignores_loop:
            return
        self.clock.step_enter(optimizer)
        if not self._step_is_open:
            self._enter_step(None)
        self.clock.step_leave(optimizer, skipped=True)
        self.last_optimizer = optimizer
        self.optimizer_skipped(optimizer)

    def closure_enter(self) -> None:
        """Pass on that an optimizer calls its closure."""
        if not self.ignores_loop:
            self.closure_began()

    def closure_leave(self) -> None:
        """Pass on that the closure has ended."""
        if not self.ignores_loop:
            self.closure_ended()

    def calling(self, kind: LoopCallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the loss that an optimizer with a scale of its own goes backward from."""
        if self.ignores_loop:
            return
        if kind == "optimizer_backward" and (optimizer := as_scaled(args[0])) is not None:
            self.loss_scale.see_announced(optimizer, args[1] if len(args) > 1 else kwargs.get("loss"))
        self.loop_calling(kind, args, kwargs)

    def call_ended(self, kind: LoopCallKind) -> None:
        """Pass on that a call has ended."""
        if not self.ignores_loop:
            self.loop_call_ended(kind)

    def called(self, call: LoopCall) -> None:
        """Follow the loss scale, cleared gradients and loaded models."""
        if self.ignores_loop:
            return
        if call.kind in ("scale", "unscale"):
            self.loss_scale.see_scaler(call.owner)
        if isinstance(call.detail, LossScaling):
            self.loss_scale.see_scaled(call.detail.scaled, call.detail.outputs)
        elif call.kind == "zero_grad":
            self.clock.zero_grad()
        elif call.kind == "load":
            self.sites.refresh()
        self.loop_called(call)

    def other_thread(self) -> None:
        """Remember that there is more than what is followed."""
        self.has_other_threads = True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _begin_forward(self) -> None:
        """Take note that the loop calls a model: that closes a step which is over."""
        clock = self.clock
        clock.sees_modules = self.saw_training = True
        if clock.in_step:
            clock.correct_depth(num_running_steps())
        with_gradients = torch.is_grad_enabled()
        if clock.in_step:  # a closure calls it
            clock.phase = Phase.FORWARD if with_gradients else Phase.EVAL
        else:
            clock.forward(with_gradients=with_gradients)

    def _enter_step(self, module: nn.Module | None) -> None:
        if self._step_is_open:
            self.step_continued(module)
        else:
            self._step_is_open = True
            self.step_opened(module)

    def _forget_interrupted(self, *, num_modules: int, num_steps: int | None = None) -> None:
        """Leave modules and optimizer steps that an exception ended without a word.

        Torch calls no hook for some exceptions (an interrupt, an error in another hook): how many really run is counted
        on the Python stack, by the caller, where something does not fit.
        """
        if self.modules.keep(num_modules):
            self.modules_interrupted()
        if num_steps is not None:
            self.clock.correct_depth(num_steps)
