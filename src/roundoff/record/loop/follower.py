"""Follows a training loop: the one place that derives steps, running modules, the loss scale and interrupted calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.loop.calls import LoopCall, LoopCallKind, LossScaling
from roundoff.record.loop.loss_scale import LossScale, as_scaled
from roundoff.record.loop.observer import FollowedModules
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import Phase, StepClock, find_leaves, has_optimizer
from roundoff.runs import BackwardDetail
from roundoff.torch_private import keyword_arguments, num_running_modules, num_running_steps


@dataclass(slots=True)
class ModuleCall:
    """One call of a module; not frozen, since that would make the most frequent hook slower."""

    module: nn.Module
    site: int
    depth: int
    """How many modules are running around it."""
    is_by_loop: bool
    """Whether the loop has called it: no module runs around it, and no backward."""

    def keyword_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the call; only valid while it begins."""
        return keyword_arguments()


def is_in_training(module: nn.Module) -> bool:
    """Return whether a module is in training mode; some, such as frozen scripted ones, have no mode."""
    return bool(getattr(module, "training", False))


class ModuleStack:
    """The modules that are running, outermost first, as three lists: reading `sites[-1]` costs nothing."""

    def __init__(self) -> None:
        self.running: list[nn.Module] = []
        self.sites: list[int] = []
        self._calls: list[ModuleCall] = []

    def push(self, module: nn.Module, site: int, is_by_loop: bool) -> ModuleCall:
        """Note that a module begins to run."""
        running = self.running
        call = ModuleCall(module, site, len(running), is_by_loop)
        running.append(module)
        self.sites.append(site)
        self._calls.append(call)
        return call

    def pop(self, module: nn.Module) -> ModuleCall | None:
        """Note that a module has ended, with those inside whose end was not reported; None if it never began."""
        running = self.running
        if running and running[-1] is module:  # the usual case first: this is called often
            running.pop()
            self.sites.pop()
            return self._calls.pop()
        if not self.is_running(module):
            return None
        while running.pop() is not module:
            pass
        depth = len(running)
        call = self._calls[depth]
        del self.sites[depth:], self._calls[depth:]
        return call

    def is_running(self, module: nn.Module) -> bool:
        """Return whether a module runs; modules may compare in any way, so this goes by identity."""
        return any(entry is module for entry in self.running)

    def keep(self, num_modules: int) -> bool:
        """Keep the outermost modules; return whether any were running and none is left."""
        had_any = bool(self.running)
        num_modules = max(num_modules, 0)
        del self.running[num_modules:], self.sites[num_modules:], self._calls[num_modules:]
        return had_any and not self.running


@dataclass(slots=True, kw_only=True)
class BackwardCall:
    """One run of the autograd engine; not frozen, since that would make a frequent hook slower."""

    roots: tuple[Any, ...]
    """What it starts from."""
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    """The engine's other arguments."""
    is_nested: bool
    """Whether it runs inside another; nothing but the roots is known then."""
    is_part_of_forward: bool
    """Whether its gradients will be differentiated themselves, as those of a gradient penalty are."""
    loss: Tensor | None = None
    """The number it starts from, without its loss scale; None if it starts from something else, or on meta."""
    scale: Tensor | None = None
    """The loss scale; None if the loss was not scaled."""
    is_scaled: bool = False
    """Whether a GradScaler made the root."""

    @property
    def accumulates(self) -> bool:
        """Whether the gradients go into `.grad`, rather than back to the caller."""
        return bool(self.arguments[1].get("accumulate_grad", True))

    def detail(self) -> BackwardDetail:
        """Return what is written about it."""
        return BackwardDetail(
            is_part_of_forward=self.is_part_of_forward,
            is_scaled=self.is_scaled,
            returns_gradients=not self.accumulates,
        )


@dataclass(slots=True, kw_only=True)
class StepAttempt:
    """One call of an optimizer's `step`; not frozen, either."""

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
        self._last_optimizer: ref[Optimizer] | None = None
        self.num_steps = 0
        """How many steps have closed."""
        self.saw_training = False
        """Whether a model was called, something went backward or an optimizer stepped."""
        self.has_other_threads = False
        """Whether something happened in a thread that is not followed."""
        self.ignores_loop = False
        """Whether what happens now is our own doing, such as a replay."""
        self.followed_modules = FollowedModules.ALL
        """Which modules are followed; with FIRST, the end of a module is not seen."""
        self.unannounced_calls: frozenset[LoopCallKind] = frozenset()
        """Calls of the loop that are only followed when they have ended."""
        self.is_quiet = False
        """Whether the open step is followed by the `quiet_` methods, as far as it takes its usual course."""
        self.is_undisturbed = False
        """Whether nothing but the usual course of quiet steps was seen since this was set."""
        self.quiet_seconds = 0.0
        self._step_is_open = False

    @property
    def step(self) -> int:
        """The step that is open now."""
        return self.clock.step

    @property
    def last_optimizer(self) -> Optimizer | None:
        """The last one that stepped, or that a scaler did not let step; None if the script has dropped it."""
        return None if self._last_optimizer is None else self._last_optimizer()

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
        """A module is about to run in a replay of ours."""

    def modules_interrupted(self) -> None:
        """An exception has ended the outermost module, and torch called no hook."""

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

    def took(self, seconds: float) -> None:
        """Hooks took this long."""

    # -- quiet steps: a subclass that has any overrides these ----------------------------------------------------------

    def quiet_forward(self, module: nn.Module) -> bool:
        """Follow a call of a model; False if this is not the usual course of a step."""
        return False

    def quiet_backward(self, roots: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Follow the start of the autograd engine."""
        return False

    def quiet_backward_leave(self) -> bool:
        """Follow its end."""
        return False

    def quiet_step(self, optimizer: Optimizer) -> bool:
        """Follow the start of an optimizer's step."""
        return False

    def quiet_step_leave(self, optimizer: Optimizer) -> bool:
        """Follow its end."""
        return False

    def quiet_zero_grad(self, owner: Any) -> bool:
        """Follow the clearing of gradients."""
        return False

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def failed(self, error: Exception) -> None:
        """A hook raised: stop following; the training goes on."""
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
        if modules.running and modules.is_running(
            module
        ):  # it calls itself, or an exception interrupted an earlier call
            self._forget_interrupted(num_modules=num_running_modules() - 1)
        stack = modules.sites
        is_by_loop = not stack and not self.clock.in_backward
        if is_by_loop:
            self._begin_forward()
        call = modules.push(module, self.sites.of_module(module, stack[-1] if stack else None), is_by_loop)
        if is_by_loop and (self.opens_with_evaluation or torch.is_grad_enabled() or is_in_training(module)):
            self._enter_step(module)
        self.module_called(call, args)
        if self.followed_modules is FollowedModules.FIRST:
            modules.keep(0)

    def forward_leave(self, module: nn.Module, output: Any) -> None:
        """Pop the module's site, and those of modules inside it whose end was not reported."""
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
        is_scaled = not is_nested and self.loss_scale.has_scaled and self.loss_scale.is_scaled(roots)
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
                loss=None if loss is None or loss.is_meta else loss,
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
        was_skipped = self._leave_step(optimizer)
        self.optimizer_ended(StepAttempt(optimizer=optimizer, is_nested=self.clock.in_step, was_skipped=was_skipped))

    def _leave_step(self, optimizer: Optimizer) -> bool:
        """Note that an optimizer has ended its step, and return whether it left the weights as they were."""
        scaled = as_scaled(optimizer)
        was_skipped = scaled is not None and scaled.last_overflow is not None
        self.clock.step_leave(optimizer, skipped=was_skipped)
        self._last_optimizer = ref(optimizer)
        return was_skipped

    def step_skipped(self, optimizer: Optimizer) -> None:
        """Count the attempt that a scaler did not let through."""
        if self.ignores_loop:
            return
        self.clock.step_enter(optimizer)
        if not self._step_is_open:
            self._enter_step(None)
        self.clock.step_leave(optimizer, skipped=True)
        self._last_optimizer = ref(optimizer)
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
            self.clock.zero_grad(call.owner)
        elif call.kind == "load":
            self.sites.refresh()
        self.loop_called(call)

    def other_thread(self) -> None:
        """Remember that another thread trains too."""
        self.has_other_threads = True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _begin_forward(self) -> None:
        """Note that the loop calls a model, which closes a step that is over."""
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
        """Leave modules and optimizer steps that an exception ended without a hook.

        Torch calls no hook for some exceptions (an interrupt, an error in another hook). When the hooks do not fit
        together, the caller counts on the Python stack how many really run.
        """
        if self.modules.keep(num_modules):
            self.modules_interrupted()
        if num_steps is not None:
            self.clock.correct_depth(num_steps)
