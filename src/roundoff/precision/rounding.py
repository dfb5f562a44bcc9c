"""Rounding inside a computation graph: values on the way forward, gradients on the way back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from roundoff.formats import Format, SmallFloat
from roundoff.kernels.grid import holds, within
from roundoff.kernels.layout import DTYPE_CODES
from roundoff.kernels.loading import compiled
from roundoff.kernels.modes import OVERFLOW_CODES, ROUNDING_CODES
from roundoff.precision.sharded import local_part
from roundoff.precision.visible_rounding import is_watched, round_visibly, rounded_visibly

GradientRounder = Callable[[Tensor], Tensor]


def round_in_place(x: Tensor, fmt: Format) -> None:
    """Round what `x` holds, unseen by autograd: what an op saved of its own result is rounded too, as on a device."""
    data = local_part(x).data
    if is_watched():
        round_visibly(data, fmt)
    elif not _round_quickly(data, data, fmt):
        fmt.rounded(data, rounding="nearest", key=0, overflow=None, out=data)


def rounded(x: Tensor, fmt: Format) -> Tensor:
    """Return `x` rounded to nearest, without a gradient."""
    if is_watched():
        return rounded_visibly(x.detach(), fmt)
    if x.is_contiguous():
        result = torch.empty_like(x, requires_grad=False)
        if _round_quickly(x, result, fmt):
            return result
    return fmt.rounded(x, rounding="nearest", key=0, overflow=None, out=None)


def _round_quickly(x: Tensor, out: Tensor, fmt: Format) -> bool:
    """Call the compiled kernel itself if the case is plain: a third of what `round_to` costs on small tensors."""
    call = _quick_call(fmt) if isinstance(fmt, SmallFloat) else None
    if (
        call is None
        or x.dtype is not torch.float32
        or type(x) not in (Tensor, torch.nn.Parameter)
        or not x.is_cpu
        or not x.is_contiguous()
        or x.is_neg()
    ):
        return False
    call(x.data_ptr(), out.data_ptr(), x.numel())
    return True


@functools.cache
def _quick_call(fmt: SmallFloat) -> Callable[[int, int, int], None] | None:
    """Return the compiled rounding of fp32 to nearest, given source, target and length; None if there is none."""
    kernels = compiled()
    if kernels is None or holds(fmt.grid, torch.float32):
        return None
    grid = within(fmt.grid, torch.float32)
    code = DTYPE_CODES[torch.float32]
    numbers = (grid.mantissa_bits, grid.min_exponent, grid.largest, OVERFLOW_CODES[grid.overflow], grid.signed_zero)
    nearest = ROUNDING_CODES["nearest"]

    def call(source: int, target: int, length: int) -> None:
        kernels.round_float(source, target, length, code, *numbers, nearest, 0)

    return call


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
