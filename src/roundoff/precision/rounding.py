"""Rounding inside a computation graph: values on the way forward, gradients on the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from roundoff.formats import Format

GradientRounder = Callable[[Tensor], Tensor]


def round_in_place(x: Tensor, fmt: Format) -> None:
    """Round what `x` holds, unseen by autograd: what an op saved of its own result is rounded too, as on a device."""
    data = x.data
    fmt.rounded(data, rounding="nearest", key=0, overflow=None, out=data)


def rounded(x: Tensor, fmt: Format) -> Tensor:
    """Return `x` rounded to nearest, without a gradient."""
    return fmt.rounded(x, rounding="nearest", key=0, overflow=None, out=None)


def gradient_rounder(fmt: Format) -> GradientRounder:
    """Return a tensor hook that rounds dense float gradients to a format."""

    def round_gradient(grad: Tensor) -> Tensor:
        return rounded(grad, fmt) if _can_round(grad) else grad

    return round_gradient


def _can_round(x: Tensor) -> bool:
    return x.layout == torch.strided and x.dtype in (torch.float32, torch.float64)


class Narrowed(torch.autograd.Function):
    """A copy rounded to a format, as a cast makes one; the gradient is rounded on its way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: Format) -> Tensor:
        """Round the values."""
        ctx.fmt = fmt
        return rounded(x, fmt)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Round the gradient."""
        return rounded(grad, ctx.fmt) if _can_round(grad) else grad, None


def narrowed(x: Tensor, fmt: Format) -> Tensor:
    """Return a copy of `x` on the format's grid; its gradient is rounded too."""
    return Narrowed.apply(x, fmt)  # type: ignore[no-any-return,no-untyped-call]
