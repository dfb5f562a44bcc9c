"""Rounds blocks of one or two dimensions, each times its own factor, to a small float: NVFP4, fp8 blocks, integers.

On the CPU the compiled loop does it in one pass over fp32; elsewhere torch operations give the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from roundoff.kernels.compiled import check_tensors, compiled_for
from roundoff.kernels.rounding import copy_to_out, write_dense
from roundoff.kernels.rounding_rules import BLOCK_SCALE_CODES, ROUNDING_CODES, BlockScale, FloatGrid, Rounding
from roundoff.kernels.rounding_torch import can_be_quick, round_float_torch
from roundoff.kernels.summaries import absmax

_SMALLEST_AMAX: Final = 1e-12
_SMALLEST_TENSOR_AMAX: Final = 1e-30
_E4M3: Final = FloatGrid(mantissa_bits=3, min_exponent=-6, largest=448.0, overflow="saturate")


def round_scaled_blocks(
    x: Tensor,
    grid: FloatGrid,
    *,
    block: tuple[int, int],
    scale: BlockScale = "fp32",
    rounding: Rounding = "nearest",
    key: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Round blocks of the last two axes to `grid`, each times a factor that maps its amax to the largest number.

    `block` has rows and columns; 0 means all. Blocks at the end may be short. The factor is `grid.largest` / amax in
    fp32, or the power of two below. With the scale `e4m3` amax / largest is itself rounded to e4m3, after a division
    by t = (amax of the tensor) / (448 * largest). The product is rounded, saturated, and multiplied back. NaN and
    infinities are kept and do not affect other elements. Computed in fp32, for fp64 tensors in fp64.
    """
    check_tensors(x, out)
    x = x.detach().resolve_neg()
    if x.numel() == 0:
        return copy_to_out(out, x.clone())
    shape = (1, 1, *x.shape)[-2:]
    rows, columns = (size or whole for size, whole in zip(block, shape, strict=True))
    kernels = compiled_for(x)
    if kernels is None or x.dtype is torch.float64 or not can_be_quick(grid, torch.float32) or grid.min_exponent < -90:
        result = _round_torch(x.reshape(*x.shape[:-2], *shape), grid, (rows, columns), scale, rounding, key)
        return copy_to_out(out, result.view(x.shape))
    if x.dtype is not torch.float32:
        wide = round_scaled_blocks(x.float(), grid, block=block, scale=scale, rounding=rounding, key=key)
        return copy_to_out(out, wide.to(x.dtype))
    tensor_scale = float(_tensor_scale(absmax(x).value.float(), grid)) if scale == "e4m3" else 1.0
    numbers = (
        shape[1],
        shape[0],
        rows,
        columns,
        grid.mantissa_bits,
        grid.min_exponent,
        grid.largest,
        grid.signed_zero,
        BLOCK_SCALE_CODES[scale],
        tensor_scale,
        ROUNDING_CODES[rounding],
        key,
    )
    return write_dense(kernels.round_scaled_blocks, x, out, numbers, in_order=True)


def _tensor_scale(amax: Tensor, grid: FloatGrid) -> Tensor:
    return amax.clamp(min=_SMALLEST_TENSOR_AMAX) / torch.full_like(amax, _E4M3.largest * grid.largest)


def _round_torch(
    x: Tensor, grid: FloatGrid, block: tuple[int, int], scale: BlockScale, rounding: Rounding, key: int
) -> Tensor:
    wide = x if x.dtype is torch.float64 else x.float()
    into, back = (_spread(each, block, x).to(wide.dtype) for each in _factors(_amax_of(wide, block), grid, scale))
    finite = replace(grid, overflow="saturate")
    rounded = round_float_torch((wide * into).contiguous(), finite, rounding=rounding, key=key) * back
    return torch.where(torch.isfinite(wide), rounded, wide).to(x.dtype)


def _factors(amax: Tensor, grid: FloatGrid, scale: BlockScale) -> tuple[Tensor, Tensor]:
    """Return the factor of every block, and the factor back."""
    # Tensors, because some devices multiply by the inverse of a Python number instead of dividing.
    largest, one = torch.full_like(amax, grid.largest), torch.ones_like(amax)
    if scale == "e4m3":
        of_tensor = _tensor_scale(amax.max(), grid)
        relative = (amax / largest / of_tensor).clamp(2.0**_E4M3.min_exponent, _E4M3.largest)
        relative = round_float_torch(relative, _E4M3, rounding="nearest", key=0)
        return one / of_tensor / relative, of_tensor * relative
    into = largest / amax.clamp(min=_SMALLEST_AMAX)
    if scale == "power_of_two":
        into = (into.view(torch.int32) & 0x7F800000).view(torch.float32)
    return into, one / into


def _amax_of(x: Tensor, block: tuple[int, int]) -> Tensor:
    """Return the largest finite magnitude of every block, in fp32."""
    rows, columns = block
    finite = torch.where(torch.isfinite(x), x.abs(), 0.0)
    padded = torch.nn.functional.pad(finite, (0, -x.shape[-1] % columns, 0, -x.shape[-2] % rows))
    blocks: Tensor = padded.unflatten(-1, (-1, columns)).unflatten(-3, (-1, rows))
    return blocks.amax((-3, -1)).float()


def _spread(values: Tensor, block: tuple[int, int], like: Tensor) -> Tensor:
    """Return the value of its block for every element."""
    rows, columns = block
    spread = values.repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return spread[..., : like.shape[-2], : like.shape[-1]]
