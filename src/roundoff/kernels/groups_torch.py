"""Groups as codes in torch operations, with the same bits as the compiled loops (csrc/group_codes.cpp)."""

from __future__ import annotations

import torch
from torch import Tensor

from roundoff.kernels.random_numbers import random_31

_SMALLEST_NORMAL = 2.0**-126
_LARGEST_STEP = 2.0**125
_LOW_HALF = 0xFFFF


def compress_groups_torch(flat: Tensor, *, bits: int, group: int, key: int) -> tuple[Tensor, Tensor]:
    """Return heads and codes; see `roundoff.kernels.groups.compress_groups`. A group without codes has a NaN step."""
    rows = _rows(flat, group)
    zero = rows.abs() < _SMALLEST_NORMAL
    has_zero = zero.any(1, keepdim=True)
    lowest, step = _rulers(rows, zero, has_zero, num_codes=1 << bits)
    places = torch.arange(rows.numel(), device=flat.device).view(rows.shape)
    fraction = (random_31(places, key=key) >> 7).float() * 2.0**-24
    first = has_zero.int()
    codes = ((rows - lowest) * (1.0 / step) + fraction).to(torch.int32) + first
    codes = codes.clamp(max=(1 << bits) - 1).masked_fill(zero | step.isnan(), 0)
    signed = torch.where(has_zero & ~step.isnan(), -step, step)
    return _upper_halves(torch.cat([lowest, signed], 1)), _in_planes(codes, bits).flatten()


def expand_groups_torch(heads: Tensor, codes: Tensor, *, bits: int, group: int, num_values: int) -> Tensor:
    """Return the values as a flat fp32 tensor; see `roundoff.kernels.groups.expand_groups`."""
    lowest, step = heads.float().unsqueeze(2).unbind(1)
    rows = codes.view(heads.shape[0], group * bits // 8).to(torch.int32)
    planes = [rows >> (plane * bits) & ((1 << bits) - 1) for plane in range(8 // bits)]
    counts = torch.cat(planes, 1) - step.signbit().int()
    values = counts.float() * step.abs() + lowest
    return values.masked_fill(counts < 0, 0.0).flatten()[:num_values]


def _rows(flat: Tensor, group: int) -> Tensor:
    """Cut into groups of fp32; the last one is filled up with its first value, which changes no extreme."""
    missing = -flat.numel() % group
    if missing:
        first = flat[flat.numel() - (group - missing)]
        flat = torch.cat([flat, first.expand(missing)])
    return flat.float().view(-1, group)


def _rulers(rows: Tensor, zero: Tensor, has_zero: Tensor, *, num_codes: int) -> tuple[Tensor, Tensor]:
    """Return each group's lowest value, rounded down to bf16, and its step, rounded up; 0 and NaN if it has none."""
    finite = rows.isfinite().all(1, keepdim=True)
    lowest = rows.masked_fill(zero, torch.inf).amin(1, keepdim=True)
    highest = rows.masked_fill(zero, -torch.inf).amax(1, keepdim=True)
    all_zero = lowest > highest
    lowest = _bf16_below(lowest.masked_fill(all_zero, 0.0))
    num_steps = (num_codes - 1 - has_zero.int()).float()
    step = ((highest.masked_fill(all_zero, 0.0) - lowest) / num_steps).clamp(min=_SMALLEST_NORMAL)
    has_codes = finite & (step <= _LARGEST_STEP)
    bits = step.view(torch.int32)
    step = ((bits + _LOW_HALF) & ~_LOW_HALF).view(torch.float32)
    return lowest.masked_fill(~has_codes, 0.0), step.masked_fill(~has_codes, torch.nan)


def _bf16_below(x: Tensor) -> Tensor:
    bits = x.view(torch.int32)
    return ((bits + (bits < 0).int() * _LOW_HALF) & ~_LOW_HALF).view(torch.float32)


def _upper_halves(x: Tensor) -> Tensor:
    """Convert to bf16 what it holds exactly; torch's own conversion may give NaN other bits."""
    return (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)


def _in_planes(codes: Tensor, bits: int) -> Tensor:
    """Pack a row of n codes into n * bits / 8 bytes: byte j holds the codes j, j + m, j + 2m ..., lowest bits first."""
    planes = codes.view(codes.shape[0], 8 // bits, codes.shape[1] * bits // 8)
    shifts = torch.arange(0, 8, bits, device=codes.device).view(-1, 1)
    return (planes << shifts).sum(1).to(torch.uint8)
