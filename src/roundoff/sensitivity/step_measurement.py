"""Follows a training loop and measures the requested steps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.optim import Optimizer

from roundoff import torch_private
from roundoff.formats import Format
from roundoff.precision import Recipe
from roundoff.precision.optimizer import RecipeOptimizer
from roundoff.record.accelerator import is_autocast_on
from roundoff.record.loop.calls import LoopCall, LoopCallKind
from roundoff.record.loop.follower import BackwardCall, LoopFollower, ModuleCall, StepAttempt
from roundoff.record.loop.sites import LOOP
from roundoff.sensitivity.effects import Sensitivity
from roundoff.sensitivity.error_sums import ErrorSums
from roundoff.sensitivity.narrow_calls import PendingCalls
from roundoff.sensitivity.narrow_shadow_run import NarrowShadowRun
from roundoff.sensitivity.rounding_points import RoundingPoints
from roundoff.sensitivity.single_site_effects import KeptForward, SingleSiteEffects, weighted_loss

_FP32_BYTES = 4


class MeasuredStep:
    """What is known about a step, from its first forward to its last backward.

    Args:
        formats: The formats to try.
        computed_again: For how many sites and ops the forward pass is computed again.
        site: Returns the site of the running code, or None if nothing is measured now.
        in_backward: Whether the backward pass is running.
        on_error: Called with an error of the measurement; the training continues without it.
    """

    def __init__(
        self,
        formats: Sequence[Format],
        *,
        computed_again: int,
        site: Callable[[], str | None],
        in_backward: Callable[[], bool],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._formats = tuple(formats)
        self._losses: list[Tensor] = []
        self._scale: Tensor | float | None = None
        """The loss scale of the gradients that arrive now; None if they do not come from the loss."""
        self._retains_graph = False
        self._error_sums = ErrorSums(formats)
        self._calls = PendingCalls(self._error_sums, scale=lambda: self._scale, on_error=on_error)
        self._shadow_run = NarrowShadowRun(formats, on_gradient=self._calls.shadow_gradient_arrived)
        self._shadow_losses: list[list[Tensor]] = []
        self._forward = KeptForward()
        self._alone = SingleSiteEffects(formats, most=computed_again, first_order=self._error_sums.effects)
        self._deferred: list[Callable[[], None]] = []
        """What to compute in addition to the step when the running backward has ended."""
        self.mode = RoundingPoints(
            self._calls,
            self._shadow_run,
            self._forward,
            fmt=formats[0],
            site=site,
            in_backward=in_backward,
            on_error=on_error,
        )

    def backward_begins(self, backward: BackwardCall) -> None:
        """Add up the loss; gradients count from now on, divided by the loss scale."""
        gradients, retains_graph = [*backward.arguments[0], None, None][:2]
        roots = [root for root in backward.roots if isinstance(root, Tensor)]
        self._retains_graph = bool(retains_graph)
        with torch_private.hidden_from_modes(), torch.no_grad():
            scale: Tensor | float = 1.0 if backward.scale is None else backward.scale
            given = gradients if isinstance(gradients, tuple) else (None,) * len(roots)
            # Without a given gradient, backward starts with 1.
            starts = [torch.ones_like(x) if start is None else start for x, start in zip(roots, given, strict=True)]
            seeds = [start / scale for start in starts]
            self._losses.append(weighted_loss(roots, seeds))
            self._scale = scale
            shadows = self._shadow_run.losses(roots)
            self._shadow_losses.append([weighted_loss(each, seeds) for each in shadows])
            self._deferred = [
                partial(self._go_backward, shadows, seeds),
                partial(self._compute_again, list(roots), seeds),
            ]

    def backward_ended(self) -> None:
        """Compute what was deferred, and release the calls that will get no more gradients."""
        deferred, self._deferred = self._deferred, []
        with torch_private.hidden_from_modes():
            for compute in deferred:
                compute()
        if not self._retains_graph:
            self._calls.backward_ended()
            self._forward.forget()

    def no_more_gradients(self) -> None:
        """Ignore gradients that arrive from now on: they do not come from the loss."""
        self._scale = None

    def _go_backward(self, shadows: Sequence[tuple[Tensor, ...]], seeds: Sequence[Tensor]) -> None:
        try:
            self._shadow_run.backward(shadows, seeds, retain=self._retains_graph)
        except Exception as error:
            self._shadow_run.failure = f"{type(error).__name__}: {error}"

    def _compute_again(self, roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
        try:
            with torch.no_grad():
                self._alone.add(self._forward, roots, seeds)
        except Exception:  # the first-order effects remain valid
            self._alone.lose_track()

    def sensitivity(self, step: int, *, num_parameters: Mapping[str, int]) -> Sensitivity:
        """Return the result; the step must have ended."""
        self._calls.finish()
        effects, of_ops = self._alone.correct(self._error_sums.effects())
        return Sensitivity(
            step=step,
            loss=math.fsum(float(loss) for loss in self._losses),
            formats=tuple(fmt.name for fmt in self._formats),
            effects=effects,
            num_parameters=num_parameters,
            narrow_losses=self._narrow_losses(),
            missed_by_ops=of_ops,
        )

    def _narrow_losses(self) -> dict[str, float]:
        if not all(self._shadow_losses) or self._shadow_run.failure is not None:
            return {}
        totals = [math.fsum(float(loss) for loss in losses) for losses in zip(*self._shadow_losses, strict=True)]
        found = zip(self._formats, totals, strict=False)
        return {fmt.name: total for fmt, total in found if not self._shadow_run.overflows(fmt)}

    def forget_calls(self) -> None:
        """Release the calls so far: they do not belong to a measured step."""
        self._calls.forget()
        self._forward.forget()

    def forget(self) -> None:
        """Release everything."""
        self.forget_calls()
        self._shadow_run.forget()


class NarrowSigns:
    """Collects signs that a training does not compute in fp32."""

    def __init__(self) -> None:
        self._signs: dict[str, None] = {}

    def check_optimizer(self, optimizer: object) -> None:
        """Look for a recipe that rounds."""
        if isinstance(optimizer, RecipeOptimizer) and _rounds(optimizer.recipe):
            self._signs[f"the recipe '{optimizer.recipe.name}' is applied"] = None

    def note_autocast(self) -> None:
        """Note that autocast is on in code that could be measured."""
        self._signs["torch.autocast is on"] = None

    def check_models(self, models: Iterable[nn.Module]) -> None:
        """Look for weights of fewer bits than fp32."""
        weights = (weight for model in models for weight in model.parameters())
        narrow = {x.dtype for x in weights if x.is_floating_point() and x.dtype.itemsize < _FP32_BYTES}
        self._signs.update((f"there are weights in {dtype}", None) for dtype in sorted(narrow, key=str))

    def __str__(self) -> str:
        """All signs in one sentence; empty if there are none."""
        return ", ".join(self._signs)


def _rounds(recipe: Recipe) -> bool:
    """Whether a recipe computes in fewer bits somewhere; compressed saved activations do not count."""
    has_narrow_sites = any(fmt != "fp32" for fmt in recipe.overrides.values())
    return recipe.compute != "plain" or bool(recipe.device_profile) or has_narrow_sites


class StepMeasurement(LoopFollower):
    """Turns `RoundingPoints` on for the requested steps, and makes a `Sensitivity` of each."""

    def __init__(
        self,
        steps: Sequence[int],
        formats: Sequence[Format],
        *,
        computed_again: int,
        on_done: Callable[[Sensitivity], None],
    ) -> None:
        super().__init__()
        self.failure: str | None = None
        self.narrow_signs = NarrowSigns()
        self._wanted = frozenset(steps)
        self._formats = tuple(formats)
        self._computed_again = computed_again
        self._on_done = on_done
        self._node = torch_private.autograd_node()
        self._eagerly = contextlib.ExitStack()
        self._is_on = self._is_on_inside = False
        self._is_over = False
        self._new_step()

    def _new_step(self) -> None:
        self._measured = MeasuredStep(
            self._formats,
            computed_again=self._computed_again,
            site=self._site,
            in_backward=lambda: self.clock.in_backward,
            on_error=self.failed,
        )
        self._mode = self._measured.mode

    def begin(self) -> None:
        """Get ready for the first step."""
        self._turn_on_or_off()

    def finish(self) -> None:
        """Close the open step, and remove everything."""
        try:
            if self.clock.has_begun:
                self.close_step()
        finally:
            self._is_over = True
            self._turn_on_or_off()
            self._measured.forget()

    def failed(self, error: Exception) -> None:
        """End the measurement; the training continues."""
        if self.failure is None:
            self.failure = f"measuring failed with {type(error).__name__}: {error}"
        self._is_over = True

    # -- hooks of LoopFollower -----------------------------------------------------------------------------------------

    def module_called(self, call: ModuleCall, args: tuple[Any, ...]) -> None:
        """Show the mode what goes into a module."""
        self._turn_on_or_off()
        if self._is_on and self.clock.in_backward and not call.depth and self._mode.is_running:
            # torch takes the mode off the stack while `backward`, itself a function of torch, is running. A module that
            # runs in there is recomputed by a checkpoint and must be followed, so the mode is pushed again.
            torch_private.push_function_mode(self._mode)
            self._is_on_inside = True
        if self._is_on:
            self._mode.give((args, call.keyword_arguments()))

    def module_returned(self, call: ModuleCall, output: Any) -> None:
        """Show the mode what came out of a module."""
        if self._is_on:
            self._mode.take(output, self.sites.names[call.site])
        if self._is_on_inside and not call.depth:
            torch_private.remove_function_mode(self._mode)
            self._is_on_inside = False

    def backward_began(self, backward: BackwardCall) -> None:
        """Add up the loss; gradients count from now on, divided by the loss scale."""
        if backward.is_nested:
            return
        if self.clock.step not in self._wanted:
            self._measured.forget_calls()
        elif not backward.is_part_of_forward:
            self._measured.backward_begins(backward)

    def backward_ended(self, *, is_microbatch: bool) -> None:
        """Compute what was deferred; no more gradients arrive."""
        if is_microbatch:
            self.ignores_loop = True
            try:
                self._measured.backward_ended()
            finally:
                self.ignores_loop = False
        if not self.clock.in_backward:
            self._measured.no_more_gradients()

    def optimizer_began(self, attempt: StepAttempt) -> None:
        """Look for a recipe that rounds."""
        self.narrow_signs.check_optimizer(attempt.optimizer)

    def optimizer_ended(self, attempt: StepAttempt) -> None:
        """Get ready for the next step: in a loop without modules, nothing announces its beginning."""
        self._turn_on_or_off()

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        """Get ready for the next step."""
        self._turn_on_or_off()

    def loop_calling(self, kind: LoopCallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look for a recipe that rounds."""
        if kind == "optimizer_backward":
            self.narrow_signs.check_optimizer(args[0])

    def loop_called(self, call: LoopCall) -> None:
        """Get ready for the next step, which cleared gradients may announce."""
        if call.kind == "zero_grad":
            self._turn_on_or_off()

    def step_closed(self, step: int) -> None:
        """Report the result of a measured step."""
        if self._is_over or step not in self._wanted:
            return
        with torch_private.hidden_from_modes(), torch.no_grad():
            sensitivity = self._measured.sensitivity(step, num_parameters=self._num_parameters())
            self.narrow_signs.check_models(self.sites.models)
        self._is_over = step >= max(self._wanted)
        self._turn_off()
        self._new_step()
        self._turn_on_or_off()
        self._on_done(sensitivity)

    def _num_parameters(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        seen: set[Tensor] = set()
        for module in (module for model in self.sites.models for module in model.modules()):
            site = self.sites.names[self.sites.of_module(module, 0)]
            own = [p for p in module.parameters(recurse=False) if p not in seen]
            seen.update(own)
            if own:
                counts[site] = counts.get(site, 0) + sum(p.numel() for p in own)
        return counts

    def _turn_on_or_off(self) -> None:
        """Push the mode if the present step is measured, or remove it."""
        if self._mode.is_running:
            return  # torch has taken it off the stack for now, and puts it back itself
        step, clock = self.clock.step, self.clock
        wanted = step in self._wanted or (step + 1 in self._wanted and clock.ends_at_forward)
        if wanted and not self._is_over:
            if torch_private.compiler_is_loaded() and not self._is_on:
                self._eagerly.enter_context(torch.compiler.set_stance("force_eager"))
            if not self._is_on:
                torch_private.push_function_mode(self._mode)
            self._is_on = True
        else:
            self._turn_off()

    def _turn_off(self) -> None:
        if self._is_on:
            torch_private.remove_function_mode(self._mode)
            self._eagerly.close()
            self._is_on = False

    def _site(self) -> str | None:
        """Return the site of the running code; None if nothing is measured there."""
        if (
            self._is_over
            or not torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or torch_private.in_function_transform()
        ):
            return None
        if is_autocast_on():
            self.narrow_signs.note_autocast()
            return None  # autocast chooses the formats itself
        # What runs in backward is a recomputation. Only one inside an autograd function in Python has its own backward;
        # those of torch's engine itself only restore values.
        if self.clock.in_backward and not isinstance(self._node(), BackwardCFunction):
            return None
        stack = self.modules.sites
        return self.sites.names[stack[-1]] if stack else LOOP
