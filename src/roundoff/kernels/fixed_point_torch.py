"""Fixed point with a scale of its own, in torch operations: for accelerators and rare cases.

Nothing waits for the device. Scales are found by the same arithmetic as in csrc/bind_fixed.cpp.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from roundoff.kernels.fixed_rule import MAX_EXPONENT, SMALLEST_BOUND, FixedRule, Follow
from roundoff.kernels.modes import Rounding
from roundoff.kernels.rounding_torch import round_fixed_torch


def follow_torch(x: Tensor, scale: Tensor, rule: FixedRule, *, follow: Follow, axis: int | None) -> None:
    """Write the scale of the data into `scale`; one that has no finite elements leaves it, unless it was never set."""
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
    """Say where a finite element is beyond its scale by more than half a step."""
    limit = _along(scale, x, axis) * (1 + 0.5 / rule.steps_per_scale)
    return (x.abs() > limit) & x.isfinite()


def _rows(x: Tensor, axis: int | None) -> Tensor:
    """Return one row for each scale, in fp32 or wider."""
    wide = x if x.dtype == torch.float64 else x.float()
    return wide.reshape(1, -1) if axis is None else wide.movedim(axis, 0).flatten(1)


def _along(scale: Tensor, x: Tensor, axis: int | None) -> Tensor:
    """Shape `scale` so that it broadcasts against `x`."""
    wide = scale.to(x.device, torch.promote_types(x.dtype, torch.float32))
    if axis is None:
        return wide.reshape(())
    return wide.view([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])


def _scale_of(rows: Tensor, num_finite: Tensor, rule: FixedRule) -> Tensor:
    if rule.range == "3sigma":
        return _covering(_three_sigma(rows, num_finite), rule)
    magnitudes = rows.abs()
    if rule.range == "percentile":
        place = max(math.ceil(rows.shape[1] * rule.percentile / 100), 1)
        return _covering(magnitudes.kthvalue(place, dim=1).values, rule)
    scale = _covering(magnitudes.amax(1), rule)
    return _swept(rows, scale, rule) if rule.range == "sweep" else scale


def _covering(bound: Tensor, rule: FixedRule) -> Tensor:
    """Return the smallest power of two not below `bound`, exactly; or the bound itself."""
    bound = bound.clamp(min=SMALLEST_BOUND)
    if rule.float_scale:
        return bound.float()
    fraction, exponent = torch.frexp(bound)
    exponent = (exponent - (fraction == 0.5).to(exponent.dtype)).clamp(max=MAX_EXPONENT)
    return torch.ldexp(torch.ones_like(bound, dtype=torch.float32), exponent)


def _three_sigma(rows: Tensor, num_finite: Tensor) -> Tensor:
    wide = rows if rows.device.type == "mps" else rows.double()  # which has no fp64
    mean = wide.sum(1) / num_finite.clamp(min=1)
    variance = (wide.square().sum(1) - num_finite * mean.square()) / (num_finite - 1).clamp(min=1)
    sigma = torch.where(num_finite > 1, variance.clamp(min=0), 0.0).sqrt()
    return 3 * sigma + mean.abs()


def _swept(rows: Tensor, scale: Tensor, rule: FixedRule) -> Tensor:
    """Return of the scale, its half and its quarter the one that rounding changes the elements least with."""
    candidates = torch.stack([scale, scale / 2, scale / 4])
    changes = [
        (round_to_scale_torch(rows, candidate, rule, axis=0, rounding="nearest", key=0) - rows).abs().double().sum(1)
        for candidate in candidates
    ]
    best = torch.stack(changes).argmin(0)
    return candidates.gather(0, best[None])[0]
