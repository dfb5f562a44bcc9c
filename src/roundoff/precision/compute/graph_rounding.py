"""Rounds values and gradients inside a computation graph.

While a dispatch mode watches a step, rounding is a torch op of its own, so that the mode sees where emulation makes an
infinity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from roundoff.formats import Format, SmallFloat, format_named
from roundoff.kernels.compiled import DTYPE_CODES, compiled_kernels
from roundoff.kernels.rounding_rules import OVERFLOW_CODES, ROUNDING_CODES, holds, within
from roundoff.precision.compute.sharded_weights import local_part
from roundoff.torch_private import has_dispatch_modes


class _Ops(NamedTuple):
    library: Any
    """Keeps the definitions alive."""
    round_: Callable[[Tensor, str], Tensor]
    rounded: Callable[[Tensor, str], Tensor]


_FORMATS: dict[str, Format] = {}
"""Formats by name: an op cannot take objects as arguments."""


def _ops_for(fmt: Format) -> _Ops:
    _FORMATS[fmt.name] = fmt
    return _ops()


@functools.cache
def _ops() -> _Ops:
    library = torch.library.Library("roundoff", "FRAGMENT")
    library.define("round_(Tensor(a!) x, str format) -> Tensor(a!)")
    library.define("rounded(Tensor x, str format) -> Tensor")
    # One implementation for all devices, which torch does not decompose: a mode sees the rounding itself.
    library.impl("round_", _round_op_, "CompositeExplicitAutograd")
    library.impl("rounded", _rounded_op, "CompositeExplicitAutograd")
    return _Ops(library, torch.ops.roundoff.round_.default, torch.ops.roundoff.rounded.default)


def _round_op_(x: Tensor, name: str) -> Tensor:
    return _format(name).round_tensor(x, rounding="nearest", key=0, overflow=None, out=x)


def _rounded_op(x: Tensor, name: str) -> Tensor:
    return _format(name).round_tensor(x, rounding="nearest", key=0, overflow=None, out=None)


def _format(name: str) -> Format:
    return _FORMATS.get(name) or format_named(name)


GradientRounder = Callable[[Tensor], Tensor]


def round_in_place(x: Tensor, fmt: Format) -> None:
    """Round `x` without autograd noticing: a result that an op has saved for backward is rounded too."""
    data = local_part(x).data
    if has_dispatch_modes():
        _ops_for(fmt).round_(data, fmt.name)
    elif not _round_quickly(data, data, fmt):
        fmt.round_tensor(data, rounding="nearest", key=0, overflow=None, out=data)


def round_without_gradient(x: Tensor, fmt: Format) -> Tensor:
    """Return `x` rounded to nearest, without a gradient."""
    if has_dispatch_modes():
        return _ops_for(fmt).rounded(x.detach(), fmt.name)
    if x.is_contiguous():
        result = torch.empty_like(x, requires_grad=False)
        if _round_quickly(x, result, fmt):
            return result
    return fmt.round_tensor(x, rounding="nearest", key=0, overflow=None, out=None)


def _round_quickly(x: Tensor, out: Tensor, fmt: Format) -> bool:
    """Call the compiled kernel directly in simple cases: on small tensors a third of the cost of `round_to`."""
    call = _quick_call(fmt) if isinstance(fmt, SmallFloat) else None
    if (
        call is None
        or x.dtype is not torch.float32
        or type(x) not in (Tensor, torch.nn.Parameter)
        or not x.is_cpu
        or not x.is_contiguous()
        or x.is_neg()  # a lazily negated view: its memory holds the opposite signs
    ):
        return False
    call(x.data_ptr(), out.data_ptr(), x.numel())
    return True


@functools.cache
def _quick_call(fmt: SmallFloat) -> Callable[[int, int, int], None] | None:
    """Return the compiled rounding of fp32 to nearest, a function of source, target and length, or None."""
    kernels = compiled_kernels()
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
        can_round = grad.layout == torch.strided and grad.dtype in (torch.float32, torch.float64)
        return round_without_gradient(grad, fmt) if can_round else grad

    return round_gradient


class RoundedCopy(torch.autograd.Function):
    """A copy rounded to a format, like a cast; the gradient is rounded in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: Format) -> Tensor:
        """Round the values."""
        ctx.fmt = fmt
        return round_without_gradient(x, fmt)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Round the gradient."""
        return gradient_rounder(ctx.fmt)(grad), None


def round_with_gradient(x: Tensor, fmt: Format) -> Tensor:
    """Return a copy of `x` rounded to the format; its gradient is rounded too."""
    return RoundedCopy.apply(x, fmt)  # type: ignore[no-any-return,no-untyped-call]
