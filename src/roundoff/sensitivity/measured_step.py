"""One measured step: the mode that follows it, what is kept of it, and the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from roundoff.formats import Format
from roundoff.record.loop.follower import BackwardCall
from roundoff.record.torch_private import hidden_from_modes
from roundoff.sensitivity.effects import Sensitivity
from roundoff.sensitivity.error_sums import ErrorSums
from roundoff.sensitivity.narrow_calls import PendingCalls
from roundoff.sensitivity.narrow_shadow_run import NarrowShadowRun
from roundoff.sensitivity.rounding_points import RoundingPoints
from roundoff.sensitivity.single_site_effects import KeptForward, SingleSiteEffects, weighted_loss


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
        with hidden_from_modes(), torch.no_grad():
            scale: Tensor | float = 1.0 if backward.scale is None else backward.scale
            given = gradients if isinstance(gradients, tuple) else (None,) * len(roots)
            seeds = [_seed(*pair) / scale for pair in zip(roots, given, strict=True)]
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
        with hidden_from_modes():
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
        effects, of_ops = self._alone.corrected(self._error_sums.effects())
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


def _seed(root: Tensor, given: Tensor | None) -> Tensor:
    """Return the gradient that backward starts with at a root."""
    return torch.ones_like(root) if given is None else given
