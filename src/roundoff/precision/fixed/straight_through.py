"""Quantizes a tensor on its way forward and its gradient on the way back, each with its own setting and scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from roundoff.kernels.fixed_point import zero_beyond_
from roundoff.precision.fixed.slot import Slot


class _StraightThrough(torch.autograd.Function):
    """The gradient passes where the rounded value is within the scale, and is zero beyond it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, slot: Slot, scale: Tensor, gradient_slot: Slot, gradient_scale: Tensor, training: bool
    ) -> Tensor:
        ctx.slot, ctx.scale, ctx.training = gradient_slot, gradient_scale, training
        ctx.beyond = None
        if not slot.is_active:
            return x.view_as(x)
        found = slot.quantize(scale, x, training=training, wants_beyond=True)
        ctx.beyond = found.beyond
        return found.values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        result = gradient
        if ctx.slot.is_active:
            result = _quantized_gradient(ctx.slot, ctx.scale, gradient, training=ctx.training)
        if ctx.beyond is not None:
            fresh = result.to_dense() if result.is_sparse else result.contiguous()
            result = zero_beyond_(fresh.clone() if fresh is gradient else fresh, ctx.beyond)
        return result, None, None, None, None, None


_apply: Callable[..., Tensor] = _StraightThrough.apply


def quantize_both_ways(
    x: Tensor, slot: Slot, scale: Tensor, gradient_slot: Slot, gradient_scale: Tensor, *, training: bool
) -> Tensor:
    """Return `x` quantized as `slot` says; its gradient will be quantized as `gradient_slot` says.

    Without grad mode, or where `x` needs no gradient, nothing is kept for a backward.
    """
    if x.requires_grad and torch.is_grad_enabled():
        return _apply(x, slot, scale, gradient_slot, gradient_scale, training)
    if not slot.is_active:
        return x
    return slot.quantize(scale, x, training=training).values


def _quantized_gradient(slot: Slot, scale: Tensor, gradient: Tensor, *, training: bool) -> Tensor:
    """Quantize a gradient; of a sparse one (an embedding's) the rows that are there."""
    if not gradient.is_sparse:
        return slot.quantize(scale, gradient, training=training).values
    gradient = gradient.coalesce()
    values = slot.quantize(scale, gradient.values(), training=training).values
    return torch.sparse_coo_tensor(
        gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False
    )
