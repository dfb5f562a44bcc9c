"""A second, narrow computation of the step next to the real one: what all rounding errors together do to the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from roundoff.formats import Format
from roundoff.sensitivity.narrow_calls import NarrowCall
from roundoff.torch_private import WeakIdKeyDictionary

OnShadowGradient = Callable[[NarrowCall, Format, int, Tensor], None]
"""Called with a call, a format, the index of one of its results, and the gradient of that result's shadow."""


class NarrowShadowRun:
    """Every tensor of the step has a shadow in each format: its value if every site were narrow.

    A call is repeated on the shadows of its operands, wide and narrow. The difference is the error that it introduces,
    which is added to the result as a constant. So the shadows have their own graph, whose gradients differ from those
    of the real step by the effect of all errors. A call's own error, times the mean of the two gradients, is its part
    of the change of the loss.

    Functions that torch hides from modes, such as custom ones, have no shadows: the values after them start again
    from the real step.
    """

    def __init__(self, formats: Sequence[Format], *, on_gradient: OnShadowGradient) -> None:
        self.failure: str | None = None
        """Why the shadows were given up."""
        self._formats = tuple(formats)
        self._on_shadow_gradient = on_gradient
        self._shadows = WeakIdKeyDictionary()
        self._overflows: dict[Format, Tensor] = {}
        self._seed = torch.zeros((), requires_grad=True)
        """The leaf of the graph of the shadows."""

    def knows(self, x: Tensor) -> bool:
        """Whether a tensor has shadows."""
        return x in self._shadows

    def follow(self, call: NarrowCall, results: Sequence[Tensor], *, rounds: bool) -> None:
        """Repeat a call on the shadows of its operands; `rounds` if something of it would be rounded."""
        shadows = [self._shadows.get(x) for x in call.originals]
        if self.failure is not None or not (rounds or any(shadows)):
            return
        try:
            # A checkpoint around the real call counts saved tensors; those of the shadows must not be among them.
            with saved_tensors_hooks(torch.Tensor.detach, lambda kept: kept):
                made = [self._repeat(call, nth, shadows, rounds=rounds) for nth in range(len(self._formats))]
            for place, x in enumerate(results):
                self._shadows[x] = tuple(each[place] for each in made)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            self._shadows.clear()

    def _repeat(
        self, call: NarrowCall, nth: int, shadows: Sequence[Sequence[Tensor] | None], *, rounds: bool
    ) -> list[Tensor]:
        operands = [x if shadow is None else shadow[nth] for x, shadow in zip(call.operands, shadows, strict=True)]
        if call.writes and shadows[0] is None:
            operands[0] = operands[0].clone()
        if not rounds:
            return call.repeat(operands, in_place=True)
        fmt = self._formats[nth]
        with torch.no_grad():
            narrow = call.repeat_narrow([x.detach() for x in operands], fmt)
        wide = call.repeat(operands, in_place=True)
        return [self._with_error(call, fmt, *each) for each in zip(wide, narrow, strict=True)]

    def _with_error(self, call: NarrowCall, fmt: Format, wide: Tensor, narrow: Tensor) -> Tensor:
        # What overflows keeps its value: overflow is counted elsewhere, and infinities would hide everything else.
        overflows = (torch.isfinite(wide.detach()) & ~torch.isfinite(narrow)).any()
        before = self._overflows.get(fmt)
        self._overflows[fmt] = overflows if before is None else before.to(overflows.device) | overflows
        error = (narrow - wide.detach()).nan_to_num_(0.0, posinf=0.0, neginf=0.0)
        if call.writes:
            wide.data.add_(error)  # invisible to autograd, like rounding in place
            shadow = wide
        else:
            shadow = wide + error
        if not shadow.requires_grad:
            shadow = shadow + 0.0 * self._seed
        errors = call.shadow_errors.setdefault(fmt, [])
        shadow.register_hook(partial(self._on_gradient, call, fmt, len(errors)))
        errors.append(error)
        return shadow

    def _on_gradient(self, call: NarrowCall, fmt: Format, place: int, gradient: Tensor) -> None:
        with torch.no_grad():
            self._on_shadow_gradient(call, fmt, place, gradient)

    def losses(self, roots: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Return the tensors that backward starts from in each format; empty if they are not known."""
        if self.failure is not None or not all(root in self._shadows for root in roots):
            return []
        return [tuple(self._shadows[root][nth] for root in roots) for nth in range(len(self._formats))]

    def overflows(self, fmt: Format) -> bool:
        """Whether something would overflow in a format: then the loss of its shadows is not a possible loss."""
        return fmt in self._overflows and bool(self._overflows[fmt])

    def backward(self, losses: Sequence[tuple[Tensor, ...]], seeds: Sequence[Tensor], *, retain: bool) -> None:
        """Run backward through the graphs of the shadows."""
        for roots in losses:
            pairs = [pair for pair in zip(roots, seeds, strict=True) if pair[0].requires_grad]
            if pairs:
                outputs, starts = zip(*pairs, strict=True)
                torch.autograd.grad(outputs, [self._seed], starts, retain_graph=retain, allow_unused=True)

    def forget(self) -> None:
        """Release everything."""
        self._shadows.clear()
