"""Buffers as they were before a step, in case the step never happened."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class BufferRollback:
    """Copies a model's buffers before the first forward of a step, and puts them back when the step is skipped.

    Stock AMP skips the weights of a bad step but keeps its batch-norm statistics. Several optimizers may share one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._copies: list[Tensor] = []
        self._buffers: list[Tensor] = []
        self._taken = False
        self._hook = model.register_forward_pre_hook(self._before_forward)

    @property
    def hook(self) -> RemovableHandle:
        """What to remove to stop."""
        return self._hook

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if self._taken or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        buffers = list(module.buffers())
        if len(buffers) != len(self._copies) or any(
            a.shape != b.shape or a.dtype != b.dtype or a.device != b.device
            for a, b in zip(buffers, self._copies, strict=False)
        ):
            self._copies = [buffer.detach().clone() for buffer in buffers]
        elif buffers:
            torch._foreach_copy_(self._copies, buffers)
        self._buffers = buffers
        self._taken = True

    def restore(self) -> None:
        """Put the buffers back as they were before the step."""
        if self._taken and self._buffers:
            with torch.no_grad():
                torch._foreach_copy_(self._buffers, self._copies)

    def forget(self) -> None:
        """The step has happened, or its buffers are back: copy again before the next forward."""
        self._taken = False

    def remember(self) -> tuple[list[Tensor], list[Tensor], bool]:
        """Return what it holds, to go back there."""
        return [copy.clone() for copy in self._copies], list(self._buffers), self._taken

    def recall(self, memory: tuple[list[Tensor], list[Tensor], bool]) -> None:
        """Go back."""
        copies, buffers, self._taken = memory
        self._copies, self._buffers = [copy.clone() for copy in copies], list(buffers)

    def __deepcopy__(self, memo: dict[int, Any]) -> BufferRollback:
        # A copied model has no optimizer that could skip its steps: its hook does nothing.
        copy = object.__new__(BufferRollback)
        copy._copies, copy._buffers, copy._taken = [], [], True
        return copy
