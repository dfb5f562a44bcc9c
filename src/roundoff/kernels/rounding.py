"""Rounds tensors to a small float, to fixed point, or to blocks with a scale.

On the CPU the compiled loops do it in one pass; elsewhere `rounding_torch` gives the same bits. The result has the
dtype and shape of `x` and no gradient. Named formats, checks and defaults are in `roundoff.formats`.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from roundoff.kernels.compiled import DTYPE_CODES, check_tensors, compiled_for
from roundoff.kernels.rounding_rules import (
    BLOCK_SCALE_CODES,
    OVERFLOW_CODES,
    ROUNDING_CODES,
    BlockScale,
    FloatGrid,
    Rounding,
    holds,
    within,
)
from roundoff.kernels.rounding_torch import can_be_quick, round_blocks_torch, round_fixed_torch, round_float_torch
from roundoff.kernels.summaries import absmax


def round_float(
    x: Tensor, grid: FloatGrid, *, rounding: Rounding = "nearest", key: int = 0, out: Tensor | None = None
) -> Tensor:
    """Round every value of `x` to `grid`, without intermediate rounding, subnormals included.

    `key` (see `draw_key`) is used by stochastic rounding only. A grid that holds every value of the dtype copies `x`.
    """
    check_tensors(x, out)
    x = x.detach().resolve_neg()
    kernels = compiled_for(x)
    if kernels is None:
        return copy_to_out(out, round_float_torch(x, grid, rounding=rounding, key=key))
    of_grid = _grid_numbers(grid, x.dtype)
    if of_grid is None:
        return copy_to_out(out, x.clone() if out is None else x)
    numbers = (*of_grid, ROUNDING_CODES[rounding], key)
    return write_dense(kernels.round_float, x, out, numbers, in_order=rounding == "stochastic")


def round_fixed(
    x: Tensor,
    *,
    step: float | Tensor,
    lowest: int,
    highest: int,
    rounding: Rounding = "nearest",
    key: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Round every value of `x` to a multiple of `step`, between `lowest * step` and `highest * step`.

    The quotient x / step and the product are computed in fp32 (fp64 for fp64 tensors); ties of the quotient go to the
    even code. NaN and infinities are kept; zeros become +0. A tensor as `step` broadcasts against `x`, without waiting
    for an accelerator.
    """
    check_tensors(x, out)
    x = x.detach().resolve_neg()
    kernels = compiled_for(x)
    runs = None if kernels is None else _runs_of(x, step)
    if kernels is None or runs is None:
        result = round_fixed_torch(x, step=step, lowest=lowest, highest=highest, rounding=rounding, key=key)
        return copy_to_out(out, result)
    steps, inner = runs
    numbers = steps.buffer_info()[0], len(steps), inner, float(lowest), float(highest), ROUNDING_CODES[rounding], key
    in_order = rounding == "stochastic" or len(steps) > 1
    return write_dense(kernels.round_fixed, x, out, numbers, in_order=in_order)


def round_blocks(
    x: Tensor,
    grid: FloatGrid,
    *,
    block_size: int,
    max_exponent: int,
    rounding: Rounding = "nearest",
    key: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Round blocks of the last axis, each to `grid` times its own power of two; the last block may be short.

    The power is 2**(floor(log2(amax)) - `max_exponent`), clamped to 2**-127 ... 2**127, where amax is the block's
    largest finite magnitude. Values that are still too large saturate; NaN and infinities are kept and do not affect
    the other elements.
    """
    check_tensors(x, out)
    x = x.detach().resolve_neg()
    rows = x.reshape(1) if x.dim() == 0 else x
    kernels = compiled_for(x)
    if kernels is None or x.numel() == 0:
        result = x.clone()
        if x.numel():
            result = round_blocks_torch(
                rows, grid, block_size=block_size, max_exponent=max_exponent, rounding=rounding, key=key
            ).view(x.shape)
        return copy_to_out(out, result)
    numbers = (
        rows.shape[-1],
        block_size,
        grid.mantissa_bits,
        grid.min_exponent,
        grid.largest,
        max_exponent,
        grid.signed_zero,
        ROUNDING_CODES[rounding],
        key,
    )
    return write_dense(kernels.round_blocks, x, out, numbers, in_order=True)


@functools.cache
def _grid_numbers(grid: FloatGrid, dtype: torch.dtype) -> tuple[int, int, float, int, bool] | None:
    """Return the grid as the compiled kernel takes it, or None if it holds every value of `dtype`."""
    if holds(grid, dtype):
        return None
    grid = within(grid, dtype)
    return grid.mantissa_bits, grid.min_exponent, grid.largest, OVERFLOW_CODES[grid.overflow], grid.signed_zero


def _runs_of(x: Tensor, step: float | Tensor) -> tuple[array[float], int] | None:
    """Return the steps and the number of consecutive elements that share one; None if they vary along several axes."""
    if not isinstance(step, Tensor):
        return array("d", (step,)), max(x.numel(), 1)
    if not step.is_cpu:
        return None
    axes = [axis for axis in range(-step.dim(), 0) if step.shape[axis] > 1]
    if len(axes) > 1 or step.dim() > x.dim() or (axes and step.shape[axes[0]] != x.shape[axes[0]]):
        return None
    inner = x.shape[axes[0] :].numel() // x.shape[axes[0]] if axes else x.numel()
    return array("d", step.detach().flatten().tolist()), max(inner, 1)


def copy_to_out(out: Tensor | None, result: Tensor) -> Tensor:
    """Return `result`, or `out` holding it."""
    if out is None:
        return result
    with torch.no_grad():
        return out.copy_(result)


def write_dense(
    kernel: Callable[..., None], x: Tensor, out: Tensor | None, numbers: Sequence[float], *, in_order: bool
) -> Tensor:
    """Call a compiled kernel on dense memory and return the result: `out` if given, else a new tensor.

    The kernel gets the addresses of source and target, whose elements are in the same order, row-major if `in_order`.
    They are the same memory or do not overlap; `x` and the result are copied if that is necessary.
    """
    result = torch.empty_like(x) if out is None else out
    overlaps_partly = 0 < abs(x.data_ptr() - result.data_ptr()) < x.numel() * x.element_size()
    is_direct = _same_walk(x, result, in_order=in_order) and not overlaps_partly
    source = x if is_direct else x.contiguous()
    target = result if is_direct else torch.empty_like(source)
    kernel(source.data_ptr(), target.data_ptr(), source.numel(), DTYPE_CODES[source.dtype], *numbers)
    if not is_direct:
        with torch.no_grad():
            result.copy_(target)
    if out is not None and not out.is_inference():
        torch.autograd.graph.increment_version(out)  # autograd cannot see that the kernel wrote to `out`
    return result


def _same_walk(x: Tensor, out: Tensor, *, in_order: bool) -> bool:
    if out.is_neg():
        return False
    if x.is_contiguous() and out.is_contiguous():
        return True
    if in_order or x.stride() != out.stride():
        return False
    # `empty_like` preserves the strides of dense tensors only.
    return torch.empty_like(x, device="meta").stride() == x.stride()


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
