"""Gradients that an optimizer uses a second time because the loop did not clear them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
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
        self._left: dict[int, tuple[ref[Tensor], ref[Tensor], int, str]] = {}
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
        self._carried = {known: kept for known, kept in self._carried.items() if known not in ids}

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

    def note_cleared(self, owner: Any = None) -> None:
        """Note a zero_grad of an optimizer or model after the step began."""
        self._carried.clear()
        if self._left and owner is not None:
            cleared = owner.parameters() if isinstance(owner, nn.Module) else parameters_of(owner)
            for p in cleared:
                self._left.pop(id(p), None)

    def note_left_over(self, stepped: Optimizer, name: str, others: Iterable[Optimizer]) -> None:
        """Remember the gradients of other optimizers' parameters: those of the loss that one has just stepped for."""
        own = {id(p) for p in parameters_of(stepped)}
        left = {id(p): p for optimizer in others for p in parameters_of(optimizer) if p.grad is not None}
        for known, p in left.items():
            if known not in own and p.grad is not None and p.grad.layout is torch.strided and p.grad.numel():
                self._left[known] = (ref(p), ref(p.grad), p.grad._version, name)

    def drop_cleared_left_over(self) -> None:
        """Forget those that are 0 or gone now that another backward begins."""
        kept = [
            (known, grad) for known, (p, g, _, _) in self._left.items() if (grad := _same_gradient(p, g)) is not None
        ]
        norms = _norms([grad for _, grad in kept])
        present = {known for (known, _), norm in zip(kept, norms, strict=True) if norm}
        self._left = {known: left for known, left in self._left.items() if known in present}

    def take_left_over(self, optimizer: Optimizer) -> tuple[int, str | None]:
        """Return to how many gradients that were left over a later backward has added, and whose step left them."""
        taken = [left for p in parameters_of(optimizer) if (left := self._left.pop(id(p), None)) is not None]
        used = [
            name for p, g, version, name in taken if (x := _same_gradient(p, g)) is not None and x._version > version
        ]
        return len(used), used[0] if used else None

    def num_in(self, optimizer: Optimizer) -> int:
        """Return how many parameters of an optimizer have such a gradient; gradients replaced since do not count."""
        if not self._carried:
            return 0
        parameters = parameters_of(optimizer)
        return sum((kept := self._carried.get(id(p))) is not None and kept() is p.grad for p in parameters)


def _same_gradient(parameter: ref[Tensor], gradient: ref[Tensor]) -> Tensor | None:
    p, grad = parameter(), gradient()
    return grad if p is not None and grad is not None and p.grad is grad else None


def _norms(gradients: Sequence[Tensor]) -> list[float]:
    if not gradients:
        return []
    with torch.no_grad():
        norms = foreach_norm([x.detach() for x in gradients], 2)
        return [float(value) for value in torch.stack([norm.float().to(norms[0].device) for norm in norms]).tolist()]
