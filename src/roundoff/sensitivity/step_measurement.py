"""What shows that a training is narrow already, so that there is less to measure than it seems."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.optim import Optimizer

from roundoff.formats import Format
from roundoff.precision import Recipe
from roundoff.record.loop.sites import LOOP, Sites
from roundoff.record.loop.step_clock import StepClock, find_leaves, has_optimizer
from roundoff.record.torch_private import (
    autograd_node,
    compiler_is_loaded,
    hidden_from_modes,
    in_function_transform,
    keyword_arguments,
    num_running_modules,
    num_running_steps,
    push_function_mode,
    remove_function_mode,
)
from roundoff.sensitivity.effects import Sensitivity
from roundoff.sensitivity.measured_step import MeasuredStep

_FP32_BYTES = 4


class NarrowSigns:
    """Collects signs that a training does not compute in fp32."""

    def __init__(self) -> None:
        self._signs: dict[str, None] = {}

    def see_optimizer(self, optimizer: object) -> None:
        """Look for a recipe that rounds."""
        recipe = getattr(optimizer, "recipe", None)
        if isinstance(recipe, Recipe) and _rounds(recipe):
            self._signs[f"the recipe '{recipe.name}' is applied"] = None

    def see_autocast(self) -> None:
        """Take note that autocast is on where something could be measured."""
        self._signs["torch.autocast is on"] = None

    def see_models(self, models: Iterable[nn.Module]) -> None:
        """Look for weights that hold fewer bits."""
        weights = (weight for model in models for weight in model.parameters())
        narrow = {x.dtype for x in weights if x.is_floating_point() and x.dtype.itemsize < _FP32_BYTES}
        self._signs.update((f"there are weights in {dtype}", None) for dtype in sorted(narrow, key=str))

    def __str__(self) -> str:
        """All of them in one sentence; empty if there are none."""
        return ", ".join(self._signs)


def _rounds(recipe: Recipe) -> bool:
    """Whether a recipe computes in fewer bits somewhere; saved activations in few bits are no computation."""
    has_narrow_sites = any(fmt != "fp32" for fmt in recipe.overrides.values())
    return recipe.compute != "plain" or bool(recipe.device_profile) or has_narrow_sites


# == Follows a loop, and has the wanted steps measured.


class StepMeasurement:
    """A `LoopObserver` that turns `RoundingPoints` on for the steps that are wanted, and makes a value of each."""

    def __init__(
        self,
        steps: Sequence[int],
        formats: Sequence[Format],
        *,
        computed_again: int,
        on_done: Callable[[Sensitivity], None],
    ) -> None:
        self.failure: str | None = None
        self.num_steps = 0
        self.narrow_signs = NarrowSigns()
        self._wanted = frozenset(steps)
        self._formats = tuple(formats)
        self._computed_again = computed_again
        self._on_done = on_done
        self._sites = Sites()
        self._clock = StepClock(self._close_step, has_optimizer=lambda: has_optimizer(self._leaves or ()))
        self._running: list[nn.Module] = []
        self._stack: list[int] = []
        self._leaves: list[ref[Tensor]] | None = None
        self._node = autograd_node()
        self._eagerly = contextlib.ExitStack()
        self._is_on = self._is_on_inside = False
        self._is_over = False
        self._is_aside = False
        """Whether a backward of our own is running."""
        self._new_step()

    def _new_step(self) -> None:
        self._measured = MeasuredStep(
            self._formats,
            computed_again=self._computed_again,
            site=self._site,
            in_backward=lambda: self._clock.in_backward,
            on_error=self.failed,
        )
        self._mode = self._measured.mode

    def begin(self) -> None:
        """Get ready for the first step."""
        self._place()

    def finish(self) -> None:
        """Close the step that is open, and leave nothing behind."""
        try:
            if self._clock.has_begun:
                self._close_step()
        finally:
            self._is_over = True
            self._place()
            self._measured.forget()

    # -- LoopObserver: what the loop does ------------------------------------------------------------------------------

    def forward_enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Push the module's site; a call from the loop may close a step."""
        clock = self._clock
        if module in self._running:  # it calls itself, or was interrupted and never left
            self._forget_interrupted(num_modules=num_running_modules() - 1)
        if not self._running and not clock.in_backward:
            clock.sees_modules = True
            if clock.in_step:
                clock.correct_depth(num_running_steps())
            if not clock.in_step:
                clock.forward(with_gradients=torch.is_grad_enabled())
        self._place()
        if self._is_on and clock.in_backward and not self._running and self._mode.is_running:
            # `backward` is a function of torch, too, for whose time the mode is off the stack: a module that runs in
            # there is computed again by a checkpoint.
            push_function_mode(self._mode)
            self._is_on_inside = True
        self._stack.append(self._sites.of_module(module, self._stack[-1] if self._stack else None))
        self._running.append(module)
        if self._is_on:
            self._mode.give((args, keyword_arguments()))

    def forward_leave(self, module: nn.Module, output: Any) -> None:
        """Pop the module's site, and those of modules inside it that never said that they ended."""
        if module not in self._running:
            return
        if self._is_on:
            self._mode.take(output, self._sites.names[self._stack[self._running.index(module)]])
        while self._running.pop() is not module:
            pass
        del self._stack[len(self._running) :]
        if self._is_on_inside and not self._running:
            remove_function_mode(self._mode)
            self._is_on_inside = False

    def backward_enter(
        self, roots: tuple[Any, ...], *, is_part_of_forward: bool, arguments: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        """Add up the loss; gradients count from now on, without the factor that a scaler has put on them."""
        if self._is_aside:
            return
        is_nested = self._clock.in_backward
        if not is_nested and (self._running or self._clock.in_step):
            self._forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps())
        self._clock.backward_enter(is_part_of_forward=is_part_of_forward)
        if is_nested:
            return
        if self._leaves is None:
            self._leaves = find_leaves(roots)
        if self._clock.step not in self._wanted:
            self._measured.forget_calls()
        elif not is_part_of_forward:
            gradients, retains_graph = [*arguments[0], None, None][:2]
            tensors = [root for root in roots if isinstance(root, Tensor)]
            self._measured.backward_begins(tensors, gradients, retains_graph=bool(retains_graph))

    def backward_leave(self) -> None:
        """Count the microbatch; no more gradients come."""
        if self._is_aside:
            return
        if self._clock.backward_leave():
            self._is_aside = True
            try:
                self._measured.backward_ended()
            finally:
                self._is_aside = False
        if not self._clock.in_backward:
            self._measured.no_more_gradients()

    def step_enter(self, optimizer: Optimizer) -> None:
        """Count the attempt."""
        if self._running or self._clock.in_step:
            self._forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps() - 1)
        self._clock.step_enter(optimizer)
        self.narrow_signs.see_optimizer(optimizer)

    def step_leave(self, optimizer: Optimizer) -> None:
        """Get ready for the next step: in a loop without modules nobody says when it begins."""
        self._clock.step_leave(optimizer)
        self._place()

    def step_skipped(self, optimizer: Optimizer) -> None:
        """Count the attempt that a scaler did not let through."""
        self._clock.step_enter(optimizer)
        self._clock.step_leave(optimizer, skipped=True)
        self._place()

    def closure_enter(self) -> None:
        """Nothing: the forward inside a closure says enough."""

    def closure_leave(self) -> None:
        """Nothing."""

    def calling(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the loss that an optimizer with a scale of its own goes backward from."""
        if call == "optimizer_backward" and hasattr(args[0], "announce"):
            self._measured.loss_scale.see_announced(args, kwargs)
            self.narrow_signs.see_optimizer(args[0])

    def call_ended(self, call: str) -> None:
        """Nothing."""

    def called(self, call: str, owner: Any, detail: dict[str, Any]) -> None:
        """Follow the scale of the loss, and clearing of gradients."""
        if call == "scale":
            self._measured.loss_scale.see_scaler(owner)
            self._measured.loss_scale.see_scaled(detail["scaled"], detail["outputs"])
        elif call == "zero_grad":
            self._clock.zero_grad()
            self._place()
        elif call == "load":
            self._sites.refresh()

    def failed(self, error: Exception) -> None:
        """End measuring; the training goes on."""
        if self.failure is None:
            self.failure = f"measuring failed with {type(error).__name__}: {error}"
        self._is_over = True

    def other_thread(self) -> None:
        """Nothing: what happens there is not measured."""

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _close_step(self) -> None:
        self.num_steps += 1
        if self._is_over or self._clock.step not in self._wanted:
            return
        with hidden_from_modes(), torch.no_grad():
            sensitivity = self._measured.sensitivity(self._clock.step, num_parameters=self._num_parameters())
            self.narrow_signs.see_models(self._sites.models)
        self._is_over = self._clock.step >= max(self._wanted)
        self._take_away()
        self._new_step()
        self._place()
        self._on_done(sensitivity)

    def _num_parameters(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        seen: set[Tensor] = set()
        for module in (module for model in self._sites.models for module in model.modules()):
            site = self._sites.names[self._sites.of_module(module, 0)]
            own = [p for p in module.parameters(recurse=False) if p not in seen]
            seen.update(own)
            if own:
                counts[site] = counts.get(site, 0) + sum(p.numel() for p in own)
        return counts

    def _place(self) -> None:
        """Put the mode on where it is needed, or take it away."""
        if self._mode.is_running:
            return  # torch has taken it off the stack for this time, and puts it back itself
        step, clock = self._clock.step, self._clock
        wanted = step in self._wanted or (step + 1 in self._wanted and clock.ends_at_forward)
        if wanted and not self._is_over:
            if compiler_is_loaded() and not self._is_on:
                self._eagerly.enter_context(torch.compiler.set_stance("force_eager"))
            if not self._is_on:
                push_function_mode(self._mode)
            self._is_on = True
        else:
            self._take_away()

    def _take_away(self) -> None:
        if self._is_on:
            remove_function_mode(self._mode)
            self._eagerly.close()
            self._is_on = False

    def _site(self) -> str | None:
        """Return where the running code belongs; None where nothing is to be measured."""
        if self._is_over or not torch.is_grad_enabled() or torch.compiler.is_compiling() or in_function_transform():
            return None
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            self.narrow_signs.see_autocast()
            return None  # it decides about formats by itself
        # What is computed in backward is a recomputation. Those of torch's engine itself only bring values back; inside
        # a function in Python there is a backward of its own.
        if self._clock.in_backward and not isinstance(self._node(), BackwardCFunction):
            return None
        return self._sites.names[self._stack[-1]] if self._stack else LOOP

    def _forget_interrupted(self, *, num_modules: int, num_steps: int | None = None) -> None:
        """Leave modules and optimizer steps that an exception ended without a word."""
        del self._running[num_modules:]
        del self._stack[num_modules:]
        if num_steps is not None:
            self._clock.correct_depth(num_steps)
