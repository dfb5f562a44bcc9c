"""The step computed beside the real one with everything narrow: what all errors together do to the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from roundoff.formats import Format
from roundoff.record.torch_private import WeakIdKeyDictionary
from roundoff.sensitivity.narrow_calls import NarrowCall

OnShadowGradient = Callable[[NarrowCall, Format, int, Tensor], None]
"""Told a call, a format, which of its results, and the gradient of that one's twin."""


class NarrowShadowRun:
    """Every tensor of the step has a twin in each format: what it would be if every site was narrow.

    A call is made again on the twins of its operands, wide and narrow. The difference is the error that it introduces,
    which is put on the result as a constant. So the twins have a graph of their own, and its gradients differ from
    those of the real step by what all the errors do to them. A call's own error, times the mean of the two gradients,
    is its part of what the loss moves by.

    Functions that torch hides from modes, such as custom ones, have no twins: what comes behind starts anew.
    """

    def __init__(self, formats: Sequence[Format], *, arrived: OnShadowGradient) -> None:
        self.failure: str | None = None
        """Why there are no twins any more."""
        self._formats = tuple(formats)
        self._arrived = arrived
        self._twins = WeakIdKeyDictionary()
        self._overflows: dict[Format, Tensor] = {}
        self._seed = torch.zeros((), requires_grad=True)
        """Where the graph of the twins begins."""

    def knows(self, x: Tensor) -> bool:
        """Say whether a tensor has twins."""
        return x in self._twins

    def follow(self, call: NarrowCall, results: Sequence[Tensor], *, rounds: bool) -> None:
        """Make a call again on the twins of its operands; `rounds` if something of it would be rounded."""
        twins = [self._twins.get(x) for x in call.originals]
        if self.failure is not None or not (rounds or any(twins)):
            return
        try:
            # What these graphs save is none of what a checkpoint around the real call counts.
            with saved_tensors_hooks(torch.Tensor.detach, lambda kept: kept):
                made = [self._made(call, nth, twins, rounds=rounds) for nth in range(len(self._formats))]
            for place, x in enumerate(results):
                self._twins[x] = tuple(each[place] for each in made)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            self._twins.clear()

    def _made(
        self, call: NarrowCall, nth: int, twins: Sequence[Sequence[Tensor] | None], *, rounds: bool
    ) -> list[Tensor]:
        operands = [x if twin is None else twin[nth] for x, twin in zip(call.operands, twins, strict=True)]
        if call.writes and twins[0] is None:
            operands[0] = operands[0].clone()
        if not rounds:
            return call.made_again(operands, in_place=True)
        fmt = self._formats[nth]
        with torch.no_grad():
            narrow = call.made_narrow([x.detach() for x in operands], fmt)
        wide = call.made_again(operands, in_place=True)
        return [self._with_error(call, fmt, *each) for each in zip(wide, narrow, strict=True)]

    def _with_error(self, call: NarrowCall, fmt: Format, wide: Tensor, narrow: Tensor) -> Tensor:
        # What overflows stays what it was: it is counted elsewhere, and would leave nothing to be seen.
        overflows = (torch.isfinite(wide.detach()) & ~torch.isfinite(narrow)).any()
        before = self._overflows.get(fmt)
        self._overflows[fmt] = overflows if before is None else before.to(overflows.device) | overflows
        error = (narrow - wide.detach()).nan_to_num_(0.0, posinf=0.0, neginf=0.0)
        if call.writes:
            wide.data.add_(error)  # unseen by autograd, as rounding in place is
            twin = wide
        else:
            twin = wide + error
        if not twin.requires_grad:
            twin = twin + 0.0 * self._seed
        errors = call.twin_errors.setdefault(fmt, [])
        twin.register_hook(partial(self._tell, call, fmt, len(errors)))
        errors.append(error)
        return twin

    def _tell(self, call: NarrowCall, fmt: Format, place: int, gradient: Tensor) -> None:
        with torch.no_grad():
            self._arrived(call, fmt, place, gradient)

    def losses(self, roots: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Return what backward starts from in each format; empty if unknown."""
        if self.failure is not None or not all(root in self._twins for root in roots):
            return []
        return [tuple(self._twins[root][nth] for root in roots) for nth in range(len(self._formats))]

    def overflows(self, fmt: Format) -> bool:
        """Say whether something would overflow in a format: then the loss of its twins is none that it could have."""
        return fmt in self._overflows and bool(self._overflows[fmt])

    def backward(self, losses: Sequence[tuple[Tensor, ...]], seeds: Sequence[Tensor], *, retain: bool) -> None:
        """Go backward through the graphs of the twins."""
        for roots in losses:
            pairs = [pair for pair in zip(roots, seeds, strict=True) if pair[0].requires_grad]
            if pairs:
                outputs, starts = zip(*pairs, strict=True)
                torch.autograd.grad(outputs, [self._seed], starts, retain_graph=retain, allow_unused=True)

    def forget(self) -> None:
        """Let go of everything."""
        self._twins.clear()
