"""Steps computed beside the real one, in which everything is narrow: what they say about errors that are not small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from roundoff.formats import Format
from roundoff.record.torch_private import WeakIdKeyDictionary
from roundoff.sensitivity.narrow_call import NarrowCall, floats_in

NOISE = 0.5
"""How much of each error a noisy lane puts on. At full size all errors together would hide what one alone does."""


class Lane(NamedTuple):
    """One step beside the real one: its format, and how much of each error it puts on.

    A lane with factor 1 is the step as it would be with every site narrow. A noisy lane, with another factor, puts
    errors on with signs drawn for every sample, so that those of different calls have nothing to do with each other.
    Its numbers are none that the format holds, so that each call rounds its inputs anew, as if nothing before it was
    narrow.
    """

    fmt: Format
    factor: float

    @property
    def is_noisy(self) -> bool:
        """Whether signs are drawn."""
        return self.factor != 1.0


Arrived = Callable[[NarrowCall, Lane, Tensor, Tensor], None]
"""Told a call, a lane, the error that was put on its result there, and the gradient of that result."""


class Twins:
    """Every tensor of the step has a twin in each lane: what it would be there.

    A call is made again on the twins of its operands, wide and narrow. The difference is the error that it introduces,
    which is put on the result as a constant. So the twins have a graph of their own, and its gradients differ from
    those of the real step by what all the errors do to them. Half of that, times a call's own error, is the part of its
    effect that is quadratic in the error: what the errors of other calls do is noise, which adds up to little over a
    batch.

    Functions that torch hides from modes, such as custom ones, have no twins: what comes behind starts anew.
    """

    def __init__(self, formats: Sequence[Format], *, arrived: Arrived) -> None:
        self.failure: str | None = None
        """Why there are no twins any more."""
        self._lanes = [Lane(fmt, factor) for factor in (1.0, NOISE, -NOISE) for fmt in formats]
        self._arrived = arrived
        self._twins = WeakIdKeyDictionary()
        self._generator = torch.Generator().manual_seed(0)
        self._seed = torch.zeros((), requires_grad=True)
        """Where the graph of the twins begins."""

    def knows(self, x: Tensor) -> bool:
        """Say whether a tensor has twins."""
        return x in self._twins

    def follow(self, call: NarrowCall, result: Any, *, written: Tensor | None, rounds: bool) -> None:
        """Make a call again on the twins of its operands; `rounds` if something of it would be rounded."""
        twins = [self._twins.get(x) for x in call.originals]
        if self.failure is not None or not (rounds or any(twins)):
            return
        results = [written] if written is not None else floats_in(result)
        signs = [self._signs(x) for x in results] if rounds else []
        try:
            # What these graphs save is none of what a checkpoint around the real call counts.
            with saved_tensors_hooks(torch.Tensor.detach, lambda kept: kept):
                made = [self._made(call, lane, nth, twins, signs) for nth, lane in enumerate(self._lanes)]
            for place, x in enumerate(results):
                self._twins[x] = tuple(each[place] for each in made)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            self._twins.clear()

    def _signs(self, x: Tensor) -> Tensor:
        """Draw a sign for every sample."""
        drawn = torch.randint(0, 2, x.shape[:1], generator=self._generator).to(x.device, x.dtype) * 2 - 1
        return drawn.view(-1, *(1 for _ in x.shape[1:])) if x.dim() else drawn

    def _made(
        self,
        call: NarrowCall,
        lane: Lane,
        nth: int,
        twins: Sequence[Sequence[Tensor] | None],
        signs: Sequence[Tensor],
    ) -> list[Tensor]:
        operands = [x if twin is None else twin[nth] for x, twin in zip(call.operands, twins, strict=True)]
        if call.writes and twins[0] is None:
            operands[0] = operands[0].clone()
        if not signs:
            return call.made_again(operands, in_place=True)
        with torch.no_grad():
            narrow = call.made_narrow([x.detach() for x in operands], lane.fmt)
        wide = call.made_again(operands, in_place=True)
        return [self._with_error(call, lane, *each) for each in zip(wide, narrow, signs, strict=True)]

    def _with_error(self, call: NarrowCall, lane: Lane, wide: Tensor, narrow: Tensor, signs: Tensor) -> Tensor:
        # What overflows stays what it was: it is counted elsewhere, and would leave nothing to be seen.
        error = (narrow - wide.detach()).nan_to_num_(0.0, posinf=0.0, neginf=0.0)
        if lane.is_noisy:
            error *= lane.factor * signs
        if call.writes:
            wide.data.add_(error)  # unseen by autograd, as rounding in place is
            twin = wide
        else:
            twin = wide + error
        if not twin.requires_grad:
            twin = twin + 0.0 * self._seed
        call.twin_errors.setdefault(lane, []).append(error)
        twin.register_hook(partial(self._tell, call, lane, error))
        return twin

    def _tell(self, call: NarrowCall, lane: Lane, error: Tensor, gradient: Tensor) -> None:
        with torch.no_grad():
            self._arrived(call, lane, error, gradient)

    def losses(self, roots: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Return what backward starts from in each lane, those with every site narrow first; empty if unknown."""
        if self.failure is not None or not all(root in self._twins for root in roots):
            return []
        return [tuple(self._twins[root][nth] for root in roots) for nth in range(len(self._lanes))]

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
