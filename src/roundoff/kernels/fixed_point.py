"""Rounds a tensor to fixed point with a scale that lives in a tensor and may follow the data.

On the CPU one compiled call measures, writes the scale in place and rounds; elsewhere `fixed_point_torch` does.
Neither waits for a device.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from roundoff.kernels.fixed_point_torch import follow_torch, is_beyond_torch, round_to_scale_torch
from roundoff.kernels.fixed_rule import FOLLOW_CODES, RANGE_CODES, FixedRule, Follow
from roundoff.kernels.layout import DTYPE_CODES, check_tensors, compiled_for
from roundoff.kernels.modes import ROUNDING_CODES, Rounding

_SHORTEST_RUN = 16  # elements in a row with one scale, for the compiled loops to be worth their call


class Quantized(NamedTuple):
    """The rounded tensor, and what there is to know of its elements."""

    values: Tensor
    beyond: Tensor | None
    """Where an element is beyond its scale by more than half a step, for `zero_beyond_`; None: nowhere or not asked."""
    num_nonfinite: int | Tensor
    """NaN and infinities, which passed through; a tensor where counting on the host would wait for a device."""


def quantize_fixed(
    x: Tensor,
    scale: Tensor,
    rule: FixedRule,
    *,
    follow: Follow,
    axis: int | None = None,
    rounding: Rounding = "nearest",
    key: int = 0,
    wants_beyond: bool = False,
) -> Quantized:
    """Let `scale` follow the data as `follow` says, then round `x` to whole steps between the lowest and highest code.

    `scale` is written in place and is measured over finite elements only; if there are none it stays. With an `axis`
    it has one number for each index of that axis of `x`.

    >>> scale = torch.zeros(())
    >>> rule = FixedRule(num_bits=2, nics=True)
    >>> quantize_fixed(torch.tensor([0.2513, -0.52, 0.0]), scale, rule, follow="data").values, scale
    (tensor([ 0.5000, -0.5000,  0.0000]), tensor(1.))
    """
    x = x.detach()
    kernels = _kernels_for(x, scale, rule, follow=follow, axis=axis)
    if kernels is None:
        return _quantize_torch(x, scale, rule, follow, axis, rounding, key, wants_beyond)
    x, out = _walkable(x, in_order=axis is not None or rounding == "stochastic")
    size = x.numel()
    runs = (scale.data_ptr(), scale.numel(), size if axis is None else _inner(x, axis), rule.num_bits)
    found = kernels.quantize_fixed(
        x.data_ptr(),
        out.data_ptr(),
        size,
        DTYPE_CODES[x.dtype],
        *runs,
        rule.nics,
        RANGE_CODES[rule.range] if follow != "never" else 0,
        rule.float_scale,
        FOLLOW_CODES[follow],
        ROUNDING_CODES[rounding],
        key,
    )
    beyond = None
    if wants_beyond and found & 1:
        beyond = _beyond(kernels, x, runs) if x.dtype == torch.float32 else is_beyond_torch(x, scale, rule, axis=axis)
    return Quantized(out, beyond, found >> 1)


def follow_data_(scale: Tensor, x: Tensor, rule: FixedRule, *, axis: int | None = None) -> None:
    """Write the scale of `x` into `scale`, without rounding anything."""
    x = x.detach()
    kernels = _kernels_for(x, scale, rule, follow="data", axis=axis)
    if kernels is None:
        check_tensors(x, None)
        if x.numel():
            follow_torch(x, scale, rule, follow="data", axis=axis)
        return
    x = x.contiguous()
    kernels.quantize_fixed(
        x.data_ptr(),
        0,
        x.numel(),
        DTYPE_CODES[x.dtype],
        scale.data_ptr(),
        scale.numel(),
        x.numel() if axis is None else _inner(x, axis),
        rule.num_bits,
        rule.nics,
        RANGE_CODES[rule.range],
        rule.float_scale,
        FOLLOW_CODES["data"],
        0,
        0,
    )


def zero_beyond_(values: Tensor, beyond: Tensor) -> Tensor:
    """Write zero into a dense `values` where `beyond`, from `quantize_fixed` of a tensor of this shape, says so."""
    if beyond.dtype == torch.bool:
        return values.masked_fill_(beyond, 0.0)
    kernels = compiled_for(values)
    if kernels is None or values.dtype != torch.float32 or not values.is_contiguous():
        places = torch.arange(8, dtype=torch.uint8)
        bits = (beyond[:, None] >> places & 1).flatten()[: values.numel()]
        return values.masked_fill_(bits.view(values.shape).bool(), 0.0)
    kernels.zero_marked(values.data_ptr(), values.numel(), beyond.data_ptr())
    return values


def _kernels_for(x: Tensor, scale: Tensor, rule: FixedRule, *, follow: Follow, axis: int | None) -> ModuleType | None:
    """Return the compiled kernels if they can do this, else None."""
    if x.dtype not in DTYPE_CODES or x.layout != torch.strided or scale.dtype != torch.float32 or not x.numel():
        return None
    if follow != "never" and (rule.range == "percentile" or (rule.range == "sweep" and x.dtype != torch.float32)):
        return None
    if axis is not None and scale.numel() > 1 and _inner(x, axis) < _SHORTEST_RUN:
        return None
    return compiled_for(x) if scale.is_cpu and scale.is_contiguous() else None


def _walkable(x: Tensor, *, in_order: bool) -> tuple[Tensor, Tensor]:
    """Return `x` and room for the result, dense and with the same walk; both row-major if `in_order`."""
    if x.is_neg():
        x = x.resolve_neg()
    if not x.is_contiguous():
        out = torch.empty_like(x)
        if not in_order and out.stride() == x.stride():
            return x, out
        x = x.contiguous()
    return x, torch.empty_like(x)


def _inner(x: Tensor, axis: int) -> int:
    """Count the elements in a row that share an index of `axis`."""
    return x.shape[axis % x.dim() + 1 :].numel()


def _beyond(kernels: ModuleType, x: Tensor, runs: tuple[int, int, int, int]) -> Tensor:
    """Return a bit for each element, in row-major order."""
    x = x.contiguous()
    bits = torch.zeros((x.numel() + 7) // 8, dtype=torch.uint8)
    kernels.mark_beyond(x.data_ptr(), x.numel(), *runs, bits.data_ptr())
    return bits


def _quantize_torch(
    x: Tensor,
    scale: Tensor,
    rule: FixedRule,
    follow: Follow,
    axis: int | None,
    rounding: Rounding,
    key: int,
    wants_beyond: bool,
) -> Quantized:
    check_tensors(x, None)
    if not x.numel():
        return Quantized(x.clone(), None, 0)
    x = x.resolve_neg()
    follow_torch(x, scale, rule, follow=follow, axis=axis)
    values = round_to_scale_torch(x, scale, rule, axis=axis, rounding=rounding, key=key)
    never_beyond = follow != "never" and rule.range == "max"
    beyond = is_beyond_torch(x, scale, rule, axis=axis) if wants_beyond and not never_beyond else None
    return Quantized(values, beyond, (~x.isfinite()).sum())
