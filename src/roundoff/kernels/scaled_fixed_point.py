"""Rounds a tensor to fixed point with a scale that is a tensor itself and can be updated from the data.

On the CPU one compiled call measures, updates the scale in place and rounds; elsewhere torch operations do. Neither
waits for a device.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from roundoff.kernels.compiled import DTYPE_CODES, check_tensors, compiled_for, widest_float
from roundoff.kernels.rounding_rules import (
    FOLLOW_CODES,
    MAX_EXPONENT,
    RANGE_CODES,
    ROUNDING_CODES,
    SMALLEST_BOUND,
    FixedRule,
    Follow,
    Rounding,
)
from roundoff.kernels.rounding_torch import round_fixed_torch

_SHORTEST_RUN = 16  # with fewer consecutive elements per scale, the compiled loops are not worth their call


class Quantized(NamedTuple):
    """The rounded tensor, and facts about its elements."""

    values: Tensor
    beyond: Tensor | None
    """Where an element exceeds its scale by more than half a step, for `zero_beyond_`; None if nowhere or unwanted."""
    num_nonfinite: int | Tensor
    """The number of NaN and infinities, which are kept; a tensor if reading the number would wait for a device."""


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
    """Update `scale` from the data as `follow` says, then round `x` to multiples of the step.

    `scale` is updated in place, from the finite elements only; if there are none, it stays. With an `axis` it has one
    number for each index of that axis of `x`.

    >>> scale = torch.zeros(())
    >>> rule = FixedRule(num_bits=2, nics=True)
    >>> quantize_fixed(torch.tensor([0.2513, -0.52, 0.0]), scale, rule, follow="data").values, scale
    (tensor([ 0.5000, -0.5000,  0.0000]), tensor(1.))
    """
    x = x.detach()
    kernels = _kernels_for(x, scale, rule, follow=follow, axis=axis)
    if kernels is None:
        check_tensors(x, None)
        if not x.numel():
            return Quantized(x.clone(), None, 0)
        x = x.resolve_neg()
        follow_torch(x, scale, rule, follow=follow, axis=axis)
        values = round_to_scale_torch(x, scale, rule, axis=axis, rounding=rounding, key=key)
        wants_beyond = wants_beyond and not (follow != "never" and rule.range == "max")  # the maximum is never exceeded
        beyond = is_beyond_torch(x, scale, rule, axis=axis) if wants_beyond else None
        return Quantized(values, beyond, (~x.isfinite()).sum())
    x, out = _walkable(x, in_order=axis is not None or rounding == "stochastic")
    runs = _runs(x, scale, rule, axis)
    codes = RANGE_CODES[rule.range] if follow != "never" else 0, rule.float_scale, FOLLOW_CODES[follow]
    memory = x.data_ptr(), out.data_ptr(), x.numel(), DTYPE_CODES[x.dtype]
    found = kernels.quantize_fixed(*memory, *runs, rule.nics, *codes, ROUNDING_CODES[rounding], key)
    beyond = None
    if wants_beyond and found & 1:
        beyond = _beyond(kernels, x, runs) if x.dtype == torch.float32 else is_beyond_torch(x, scale, rule, axis=axis)
    return Quantized(out, beyond, found >> 1)


def follow_data_(scale: Tensor, x: Tensor, rule: FixedRule, *, axis: int | None = None) -> None:
    """Set `scale` to the scale of `x`, without rounding anything."""
    x = x.detach()
    kernels = _kernels_for(x, scale, rule, follow="data", axis=axis)
    if kernels is None:
        check_tensors(x, None)
        if x.numel():
            follow_torch(x, scale, rule, follow="data", axis=axis)
        return
    x = x.contiguous()
    memory = x.data_ptr(), 0, x.numel(), DTYPE_CODES[x.dtype]  # without an address of a result nothing is rounded
    codes = RANGE_CODES[rule.range], rule.float_scale, FOLLOW_CODES["data"]
    kernels.quantize_fixed(*memory, *_runs(x, scale, rule, axis), rule.nics, *codes, 0, 0)


def zero_beyond_(values: Tensor, beyond: Tensor) -> Tensor:
    """Set the elements of a dense `values` to zero where `beyond`, from `quantize_fixed`, is set."""
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
    """Return the compiled kernels if they support this case, otherwise None."""
    if x.dtype not in DTYPE_CODES or x.layout != torch.strided or scale.dtype != torch.float32 or not x.numel():
        return None
    if follow != "never" and (rule.range == "percentile" or (rule.range == "sweep" and x.dtype != torch.float32)):
        return None
    if axis is not None and scale.numel() > 1 and _inner(x, axis) < _SHORTEST_RUN:
        return None
    return compiled_for(x) if scale.is_cpu and scale.is_contiguous() else None


def _walkable(x: Tensor, *, in_order: bool) -> tuple[Tensor, Tensor]:
    """Return `x` and memory for the result, both dense with the same order of elements, row-major if `in_order`."""
    if x.is_neg():
        x = x.resolve_neg()
    if not x.is_contiguous():
        out = torch.empty_like(x)
        if not in_order and out.stride() == x.stride():
            return x, out
        x = x.contiguous()
    return x, torch.empty_like(x)


def _inner(x: Tensor, axis: int) -> int:
    """Return the number of consecutive elements that share an index of `axis`."""
    return x.shape[axis % x.dim() + 1 :].numel()


def _runs(x: Tensor, scale: Tensor, rule: FixedRule, axis: int | None) -> tuple[int, int, int, int]:
    """Return the address of the scales, their number, how many consecutive elements share one, and the bits."""
    return scale.data_ptr(), scale.numel(), x.numel() if axis is None else _inner(x, axis), rule.num_bits


def _beyond(kernels: ModuleType, x: Tensor, runs: tuple[int, int, int, int]) -> Tensor:
    """Return one bit for each element, in row-major order."""
    x = x.contiguous()
    bits = torch.zeros((x.numel() + 7) // 8, dtype=torch.uint8)
    kernels.mark_beyond(x.data_ptr(), x.numel(), *runs, bits.data_ptr())
    return bits


# The same in torch operations, for accelerators and rare cases, without waiting for the device. Scales are found by the
# same arithmetic as in csrc/bind_fixed.cpp.


def follow_torch(x: Tensor, scale: Tensor, rule: FixedRule, *, follow: Follow, axis: int | None) -> None:
    """Set `scale` to that of the data; where there are no finite elements it stays, unless it was never set."""
    if follow == "never":
        return
    rows = _rows(x, axis)
    is_finite = rows.isfinite()
    found = _scale_of(torch.where(is_finite, rows, 0.0), is_finite.sum(1), rule)
    kept = scale.to(found).reshape(-1)
    if follow == "at_least":
        found = torch.maximum(found, kept)
    found = torch.where(is_finite.any(1) | (kept <= 0), found, kept)
    scale.copy_(found.reshape(scale.shape))


def round_to_scale_torch(
    x: Tensor, scale: Tensor, rule: FixedRule, *, axis: int | None, rounding: Rounding, key: int
) -> Tensor:
    """Round `x` to the steps of `scale`."""
    step = _along(scale, x, axis) / rule.steps_per_scale
    return round_fixed_torch(x, step=step, lowest=rule.lowest, highest=rule.highest, rounding=rounding, key=key)


def is_beyond_torch(x: Tensor, scale: Tensor, rule: FixedRule, *, axis: int | None) -> Tensor:
    """Return where a finite element exceeds its scale by more than half a step."""
    limit = _along(scale, x, axis) * (1 + 0.5 / rule.steps_per_scale)
    return (x.abs() > limit) & x.isfinite()


def _rows(x: Tensor, axis: int | None) -> Tensor:
    """Return one row for each scale, in fp32 or wider."""
    wide = x if x.dtype == torch.float64 else x.float()
    return wide.reshape(1, -1) if axis is None else wide.movedim(axis, 0).flatten(1)


def _along(scale: Tensor, x: Tensor, axis: int | None) -> Tensor:
    """Reshape `scale` so that it broadcasts against `x`."""
    wide = scale.to(x.device, torch.promote_types(x.dtype, torch.float32))
    if axis is None:
        return wide.reshape(())
    return wide.view([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])


def _scale_of(rows: Tensor, num_finite: Tensor, rule: FixedRule) -> Tensor:
    if rule.range == "3sigma":
        return _covering_scale(_three_sigma(rows, num_finite), rule)
    magnitudes = rows.abs()
    if rule.range == "percentile":
        place = max(math.ceil(rows.shape[1] * rule.percentile / 100), 1)
        return _covering_scale(magnitudes.kthvalue(place, dim=1).values, rule)
    scale = _covering_scale(magnitudes.amax(1), rule)
    return _best_of_sweep(rows, scale, rule) if rule.range == "sweep" else scale


def _covering_scale(bound: Tensor, rule: FixedRule) -> Tensor:
    """Return the smallest power of two not below `bound`, exactly; or the bound itself."""
    bound = bound.clamp(min=SMALLEST_BOUND)
    if rule.float_scale:
        return bound.float()
    fraction, exponent = torch.frexp(bound)
    exponent = (exponent - (fraction == 0.5).to(exponent.dtype)).clamp(max=MAX_EXPONENT)
    return torch.ldexp(torch.ones_like(bound, dtype=torch.float32), exponent)


def _widen(x: Tensor) -> Tensor:
    return x.to(widest_float(x.device))


def _three_sigma(rows: Tensor, num_finite: Tensor) -> Tensor:
    wide = _widen(rows)
    mean = wide.sum(1) / num_finite.clamp(min=1)
    variance = (wide.square().sum(1) - num_finite * mean.square()) / (num_finite - 1).clamp(min=1)
    sigma = torch.where(num_finite > 1, variance.clamp(min=0), 0.0).sqrt()
    return 3 * sigma + mean.abs()


def _best_of_sweep(rows: Tensor, scale: Tensor, rule: FixedRule) -> Tensor:
    """Return the scale, its half or its quarter: the one with which rounding changes the elements least."""
    candidates = torch.stack([scale, scale / 2, scale / 4])
    changes = [
        _widen((round_to_scale_torch(rows, candidate, rule, axis=0, rounding="nearest", key=0) - rows).abs()).sum(1)
        for candidate in candidates
    ]
    best = torch.stack(changes).argmin(0)
    return candidates.gather(0, best[None])[0]
