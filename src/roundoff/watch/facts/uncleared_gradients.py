"""Gradients that an optimizer uses a second time because the loop did not clear them."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from roundoff.record.structure import parameters_of
from roundoff.torch_private import foreach_norm


class UnclearedGradients:
    """Counts the parameters whose gradient still holds what their optimizer has used: an earlier step, or evaluation.

    A gradient that was set to None, zeroed, or edited since in any way does not count.
    """

    def __init__(self) -> None:
        self._used: list[tuple[ref[Tensor], ref[Tensor], int]] = []
        self._carried: dict[int, ref[Tensor]] = {}
        self._num_evaluations = 0
        self._num_in_closure = 0
        self.is_due = False
        """Whether the next backward is the first one of an evaluation of the closure."""

    def step_begins(self) -> None:
        """Count the evaluations of a closure anew."""
        self._num_evaluations = self._num_in_closure = 0
        self.is_due = False

    def closure_begins(self) -> None:
        """Expect the first backward of an evaluation."""
        self.is_due = True

    def closure_ends(self, optimizer: Optimizer) -> int:
        """Return how many gradients of the evaluation still hold those of the one before, the most of this step."""
        if self._num_evaluations:
            self._num_in_closure = max(self._num_in_closure, self.num_in(optimizer))
        self._num_evaluations += 1
        self.is_due = False
        self.note_used(optimizer)
        return self._num_in_closure

    def note_used(self, optimizer: Optimizer) -> None:
        """Remember the gradients that an optimizer has just stepped on, as they are now."""
        parameters = parameters_of(optimizer)
        ids = {id(p) for p in parameters}
        others = [one for one in self._used if (p := one[0]()) is not None and id(p) not in ids]
        self._used = others + [(ref(p), ref(p.grad), p.grad._version) for p in parameters if p.grad is not None]
        self._carried.clear()

    def backward_begins(self) -> None:
        """Find those that are unchanged now that a step begins to add to them; one transfer from their device."""
        self.is_due = False
        kept: list[tuple[int, Tensor]] = []
        for parameter, gradient, version in self._used:
            p, grad = parameter(), gradient()
            if p is None or grad is None or p.grad is not grad or grad._version != version:
                continue
            if grad.layout is torch.strided and grad.numel():
                kept.append((id(p), grad))
        norms = _norms([grad for _, grad in kept])
        self._carried = {known: ref(grad) for (known, grad), norm in zip(kept, norms, strict=True) if norm}

    def note_cleared(self) -> None:
        """Note a zero_grad after the step began."""
        self._carried.clear()

    def num_in(self, optimizer: Optimizer) -> int:
        """Return how many parameters of an optimizer have such a gradient; gradients replaced since do not count."""
        if not self._carried:
            return 0
        parameters = parameters_of(optimizer)
        return sum((kept := self._carried.get(id(p))) is not None and kept() is p.grad for p in parameters)


def _norms(gradients: Sequence[Tensor]) -> list[float]:
    if not gradients:
        return []
    with torch.no_grad():
        norms = foreach_norm([x.detach() for x in gradients], 2)
        return [float(value) for value in torch.stack([norm.float().to(norms[0].device) for norm in norms]).tolist()]
