"""Counts steps, microbatches and phases from what a loop does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from typing import Any
from weakref import ref

from torch import Tensor
from torch.optim import Optimizer

from roundoff.record.identity import live_instances

_MAX_BACKWARDS = 512
"""After this many backwards without a step or zero_grad, the loop is assumed never to step."""


class Phase(IntEnum):
    """What the loop is doing; the value is the place in `PHASES`."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    EVAL = 3


PHASES = ("forward", "backward", "optimizer", "eval")


class StepClock:
    """Knows the step, the microbatch and the phase at any moment.

    A step closes at the first grad-enabled forward after an optimizer-step attempt, so that clipping, schedulers and
    evaluation in between belong to it. Another attempt closes it as well. A loop that does not step closes it at the
    first forward after a zero_grad that followed a backward; one that has no optimizer at all, at the first forward
    after a backward.
    """

    def __init__(self, on_close: Callable[[], None], *, has_optimizer: Callable[[], bool]) -> None:
        self.step = 0
        self.microbatch = 0
        self.phase = Phase.FORWARD
        self.num_attempts = 0
        self.optimizer: str | None = None
        """Name of the optimizer whose attempt will close, or closed, this step."""
        self.skipped = False
        self.sees_modules = False
        """Whether the loop ever called a model; if not, its forward is made of plain functions."""
        self.hears_functions = False
        """Whether a mode calls `forward` for a loop of plain functions."""
        self._on_close = on_close
        self._has_optimizer = has_optimizer
        self._num_backwards = 0
        self._zeroed_after_backward = False
        self._stepping = 0
        self._backward_depth = 0
        self._is_part_of_forward = False
        self._phase_before = Phase.FORWARD
        self._ever_attempted = False
        self._zeroed: set[int] = set()
        """The ids of the optimizers and modules whose gradients were cleared in this step."""
        self._never_steps: bool | None = None

    @property
    def in_backward(self) -> bool:
        """Whether the autograd engine is running."""
        return self._backward_depth > 0

    @property
    def in_step(self) -> bool:
        """Whether an optimizer's step is running (a closure may call the model from inside it)."""
        return self._stepping > 0

    @property
    def has_begun(self) -> bool:
        """Whether the open step has seen a backward or an attempt."""
        return self._num_backwards > 0 or self.num_attempts > 0

    @property
    def is_over(self) -> bool:
        """Whether the next forward with gradients begins another step."""
        return self.num_attempts > 0 or self._is_over()

    @property
    def ends_at_forward(self) -> bool:
        """Whether the next forward may begin another step."""
        return self.num_attempts > 0 or (self._num_backwards > 0 and not self._ever_attempted)

    def forward(self, *, with_gradients: bool) -> None:
        """Note that a forward begins in the loop (not inside another module, a backward or a step)."""
        if not with_gradients:
            if self.phase is not Phase.EVAL:
                self._phase_before = self.phase
            self.phase = Phase.EVAL
            return
        if self._is_over():
            self._close()
        self.phase = Phase.FORWARD

    @property
    def is_nested(self) -> bool:
        """Whether a backward or an optimizer's step runs inside another."""
        return self._backward_depth + self._stepping > 1

    @property
    def is_idle(self) -> bool:
        """Whether neither a backward nor an optimizer's step is running."""
        return not self._backward_depth and not self._stepping

    def resume(self) -> Phase:
        """Note that the loop computes with gradients again after a forward without, and return the phase it is in."""
        self.phase = self._phase_before
        return self.phase

    def backward_enter(self, *, is_part_of_forward: bool = False) -> None:
        """Note that the autograd engine starts.

        Gradients that are computed in order to be differentiated themselves (a gradient penalty) are a part of the
        forward: they end no microbatch.
        """
        if self._backward_depth == 0:
            nobody_says = not self.sees_modules and not self.hears_functions
            if not self._stepping and (self.num_attempts or (nobody_says and self._is_over())):
                self._close()
            self._is_part_of_forward = is_part_of_forward
            if self.phase is not Phase.EVAL:
                self._phase_before = self.phase
            self.phase = Phase.BACKWARD
        self._backward_depth += 1

    def backward_leave(self) -> bool:
        """Note that the autograd engine has ended, and return whether that was the end of a microbatch."""
        self._backward_depth = max(0, self._backward_depth - 1)
        if self._backward_depth:
            return False
        if self._is_part_of_forward:
            self.phase = self._phase_before
            return False
        self._num_backwards += 1
        self._zeroed_after_backward = False
        self.microbatch = self._num_backwards
        self.phase = Phase.OPTIMIZER
        return True

    def step_enter(self, optimizer: Optimizer) -> None:
        """Note that an optimizer attempts a step; those that step during one backward, by hooks, make one together."""
        if self.num_attempts and not self._stepping and not self.in_backward:
            self._close()
        self._stepping += 1
        self._ever_attempted = True
        self.num_attempts += 1
        self.optimizer = type(optimizer).__name__
        self.phase = Phase.OPTIMIZER

    def step_leave(self, optimizer: Optimizer, *, skipped: bool = False) -> None:
        """Note that an optimizer has ended its step, or that a scaler skipped it."""
        self._stepping = max(0, self._stepping - 1)
        self.optimizer = type(optimizer).__name__
        self.skipped = skipped
        self.phase = Phase.BACKWARD if self.in_backward else Phase.OPTIMIZER

    def correct_depth(self, num_steps_running: int) -> None:
        """Set how many optimizer steps are really running: the end of one that raised was not reported."""
        self._stepping = min(self._stepping, num_steps_running)

    def zero_grad(self, owner: object = None) -> None:
        """Note that the gradients of an optimizer or a module were cleared.

        The first to be cleared in a step is cleared again where the next begins. Where several models are trained, one
        is cleared between the backwards of the others.
        """
        if self._num_backwards and not self.in_step and (not self._zeroed or id(owner) in self._zeroed):
            self._zeroed_after_backward = True
        self._zeroed.add(id(owner))

    def _is_over(self) -> bool:
        if self.num_attempts or self._zeroed_after_backward:
            return True
        if not self._num_backwards or self._ever_attempted:
            return False
        if self._never_steps is None:
            self._never_steps = not self._has_optimizer()
        return self._never_steps or self._num_backwards >= _MAX_BACKWARDS

    def _close(self) -> None:
        self._on_close()
        self.next_step()

    def next_step(self) -> None:
        """Begin the step after one that has closed."""
        self.step += 1
        self.phase = Phase.FORWARD
        self.microbatch = 0
        self._num_backwards = 0
        self._zeroed_after_backward = False
        self._zeroed.clear()
        self.num_attempts = 0
        self.optimizer = None
        self.skipped = False


def find_leaves(roots: Iterable[Any]) -> list[ref[Tensor]]:
    """Return the tensors that a backward from `roots` will give gradients to."""
    found: list[ref[Tensor]] = []
    waiting = [root.grad_fn for root in roots if isinstance(root, Tensor) and root.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            found.append(ref(leaf))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def has_optimizer(leaves: Collection[ref[Tensor]]) -> bool:
    """Return whether an optimizer of one of the leaves is alive; where none were found, any optimizer.

    An optimizer may hold others in their place: fp32 copies of narrow parameters, or the sharded ones of FSDP2, whose
    leaves are gathered for each forward. They have the same shapes.
    """
    ours = [leaf for reference in leaves if (leaf := reference()) is not None]
    shapes, dtypes, ids = {leaf.shape for leaf in ours}, {leaf.dtype for leaf in ours}, set(map(id, ours))
    for optimizer in live_instances(Optimizer):
        held = [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]
        stand_ins = [each for each in held if hasattr(each, "to_local") or each.dtype not in dtypes]
        if any(not leaves or id(each) in ids for each in held):
            return True
        if shapes and shapes <= {each.shape for each in stand_ins}:
            return True
    return False
