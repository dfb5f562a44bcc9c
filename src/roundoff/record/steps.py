"""Counts steps, microbatches and phases from what a loop does."""

from __future__ import annotations

import gc
from collections.abc import Callable
from enum import IntEnum

from torch.optim import Optimizer

_PATIENCE = 64
"""After this many backwards without a step or zero_grad a loop is taken for one that never steps."""


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
    evaluation in between belong to it. An attempt by another optimizer closes it as well. A loop that never steps
    closes it at the first forward after a zero_grad that followed a backward; one that has no optimizer at all, at the
    first forward after a backward.
    """

    def __init__(self, on_close: Callable[[], None]) -> None:
        self.step = 0
        self.microbatch = 0
        self.phase = Phase.FORWARD
        self.num_attempts = 0
        self.optimizer: str | None = None
        """Name of the optimizer whose attempt will close, or closed, this step."""
        self.skipped = False
        self._on_close = on_close
        self._attempted_by: int | None = None
        self._num_backwards = 0
        self._zeroed_after_backward = False
        self._stepping = 0
        self._backward_depth = 0
        self._forward_since_attempt = False
        self._ever_attempted = False
        self._never_steps: bool | None = None

    @property
    def in_backward(self) -> bool:
        """Whether the autograd engine is running."""
        return self._backward_depth > 0

    @property
    def has_begun(self) -> bool:
        """Whether the open step has seen a backward or an attempt."""
        return self._num_backwards > 0 or self._attempted_by is not None

    def forward(self, *, with_gradients: bool) -> None:
        """Note that a model is called from the loop (not from inside another module, a backward or a step)."""
        if not with_gradients:
            self.phase = Phase.EVAL
            return
        if self._is_over():
            self._close()
        self._forward_since_attempt = True
        self.phase = Phase.FORWARD

    def backward_enter(self) -> None:
        """Note that the autograd engine starts."""
        if self._backward_depth == 0:
            if self._attempted_by is not None and not self._forward_since_attempt and not self._stepping:
                self._close()  # a loop of plain functions: no module was called that could have closed it
            self.phase = Phase.BACKWARD
        self._backward_depth += 1

    def backward_leave(self) -> None:
        """Note that the autograd engine has ended; the next forward belongs to the next microbatch."""
        self._backward_depth = max(0, self._backward_depth - 1)
        if self._backward_depth == 0:
            self._num_backwards += 1
            self._zeroed_after_backward = False
            self.microbatch = self._num_backwards
            self.phase = Phase.OPTIMIZER

    def step_enter(self, optimizer: Optimizer) -> None:
        """Note that an optimizer begins its step."""
        if self._attempted_by not in (None, id(optimizer)) and not self._forward_since_attempt:
            self._close()
        self._stepping += 1
        self.phase = Phase.OPTIMIZER

    def step_leave(self, optimizer: Optimizer, *, skipped: bool = False) -> None:
        """Note that an optimizer has ended its step, or that a scaler skipped it."""
        self._stepping = max(0, self._stepping - 1)
        self._attempted_by = id(optimizer)
        self._forward_since_attempt = False
        self._ever_attempted = True
        self.num_attempts += 1
        self.optimizer = type(optimizer).__name__
        self.skipped = skipped
        self.phase = Phase.OPTIMIZER

    @property
    def in_step(self) -> bool:
        """Whether an optimizer's step is running (a closure may call the model from inside it)."""
        return self._stepping > 0

    def zero_grad(self) -> None:
        """Note that gradients were cleared."""
        if self._num_backwards and not self.in_step:
            self._zeroed_after_backward = True

    def _is_over(self) -> bool:
        if self._attempted_by is not None or self._zeroed_after_backward:
            return True
        if not self._num_backwards or self._ever_attempted:
            return False
        if self._never_steps is None:
            self._never_steps = not any(issubclass(type(o), Optimizer) for o in gc.get_objects())
        return self._never_steps or self._num_backwards >= _PATIENCE

    def _close(self) -> None:
        self._on_close()
        self.step += 1
        self.microbatch = 0
        self._num_backwards = 0
        self._attempted_by = None
        self._zeroed_after_backward = False
        self._forward_since_attempt = False
        self.num_attempts = 0
        self.optimizer = None
        self.skipped = False
