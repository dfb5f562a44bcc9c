"""Blocks of small floats and integers that share a scale: microscaling (MX) formats, NVFP4, fp8 in blocks or rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundoff.errors import FormatError
from roundoff.formats.format import check_saturates
from roundoff.formats.small_float import SmallFloat
from roundoff.kernels.rounding_rules import BLOCK_SCALES, BlockScale, Overflow, Rounding

if TYPE_CHECKING:
    from torch import Tensor

_SCALE_LIMIT = 127  # the scale is an E8M0 number: 2**-127 ... 2**127
_SCALE_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """Small floats in blocks of `block_size` along `axis`, each block with its own scale.

    The scale is 2**(floor(log2(amax)) - e), clamped to 2**-127 ... 2**127, where amax is the largest finite magnitude
    in the block and e the exponent of the element's largest number. Elements that are still too large saturate. NaN and
    infinities are kept and do not affect the rest of their block. The last block of a row may be short. Tensors are
    copied if `axis` is not the last.
    """

    name: str
    element: SmallFloat
    block_size: int = 32
    axis: int = -1

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise FormatError.explain(
                f"Format '{self.name}' cannot have blocks of {self.block_size}.",
                why="a block has at least one element.",
                fix="use block_size=32, as the OCP formats do.",
            )
        if self.element.exponent_bits > 8:
            raise FormatError.explain(
                f"Format '{self.name}' cannot scale elements of '{self.element.name}'.",
                why="a shared scale is within 2**-127 ... 2**127; wider elements do not need one.",
                fix="choose an element with at most 8 exponent bits.",
            )

    @property
    def num_bits(self) -> float:
        """Bits per element, including its share of the scale."""
        return self.element.num_bits + _SCALE_BITS / self.block_size

    @property
    def largest(self) -> float:
        """The largest number, in a block with the largest scale."""
        return math.ldexp(self.element.largest, _SCALE_LIMIT)

    @property
    def smallest_normal(self) -> float:
        """The smallest number of full accuracy, in a block with the smallest scale."""
        return math.ldexp(self.element.smallest_normal, -_SCALE_LIMIT)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number, in a block with the smallest scale."""
        return math.ldexp(self.element.smallest_subnormal, -_SCALE_LIMIT)

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger number, in a block with a scale of at most 1."""
        return self.element.eps

    @property
    def overflow(self) -> Overflow:
        """Elements saturate."""
        return "saturate"

    def round_tensor(
        self, x: Tensor, *, rounding: Rounding, key: int, overflow: Overflow | None, out: Tensor | None
    ) -> Tensor:
        """Return `x` rounded to this format; see `round_to`. Random numbers are in the order with `axis` last."""
        from roundoff.kernels.rounding import round_blocks

        check_saturates(self.name, overflow)
        axis = self._axis_of(x)
        result = round_blocks(
            x.movedim(axis, -1) if x.dim() else x,
            self.element.grid,
            block_size=self.block_size,
            max_exponent=self.element.max_exponent,
            rounding=rounding,
            key=key,
            out=out.movedim(axis, -1) if out is not None and out.dim() else out,
        )
        if out is not None:
            return out
        return result.movedim(-1, axis) if x.dim() else result

    def _axis_of(self, x: Tensor) -> int:
        num_dims = max(x.dim(), 1)
        if not -num_dims <= self.axis < num_dims:
            raise FormatError.explain(
                f"Format '{self.name}' has its blocks along axis {self.axis}, which the tensor does not have.",
                why=f"the tensor has {x.dim()} dimensions.",
                fix=f"use dataclasses.replace(fmt, axis=...) with an axis from {-num_dims} to {num_dims - 1}.",
            )
        return self.axis


_BITS_OF_SCALE = {"fp32": 32, "power_of_two": 8, "e4m3": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledBlocks:
    """Small floats in blocks of `block_size` along `axis`, each with a scale that maps its amax to the largest element.

    With `block_rows`, a block also spans that many rows: along the last of the other axes. 0 means the whole axis.
    `scale` is the format of the scales: `fp32`, `power_of_two` (the next larger one), or `e4m3`, which is relative to
    one fp32 scale for the whole tensor. NaN and infinities are kept and do not affect the rest of their block.

    >>> import torch
    >>> from roundoff.formats import format_named, round_to
    >>> round_to(torch.tensor([6.0, 2.4, 0.3, -5.1]), format_named("nvfp4"))
    tensor([ 6.0000,  2.0000,  0.5000, -6.0000])
    """

    name: str
    element: SmallFloat
    block_size: int
    block_rows: int = 1
    scale: BlockScale = "fp32"
    axis: int = -1

    def __post_init__(self) -> None:
        if self.block_size < 0 or self.block_rows < 0:
            raise FormatError.explain(
                f"Format '{self.name}' cannot have blocks of {self.block_rows} x {self.block_size}.",
                why="a block has at least one element.",
                fix="use 0 for the whole axis.",
            )
        if self.scale not in BLOCK_SCALES:
            raise FormatError.explain(
                f"Format '{self.name}' cannot have a scale in '{self.scale}'.",
                why=f"allowed: {', '.join(BLOCK_SCALES)}.",
                fix="use one of them.",
            )

    @property
    def num_bits(self) -> float:
        """Bits per element, including its share of the scale of its block, if that has a size."""
        share = (
            _BITS_OF_SCALE[self.scale] / (self.block_size * self.block_rows) if self.block_size * self.block_rows else 0
        )
        return self.element.num_bits + share

    @property
    def largest(self) -> float:
        """The largest number in a block with the largest scale, which fp32 limits."""
        return 2.0**127

    @property
    def smallest_normal(self) -> float:
        """The smallest number of full accuracy, in a block with the smallest scale."""
        return self.element.smallest_normal * self._smallest_scale

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number, in a block with the smallest scale."""
        return self.element.smallest_subnormal * self._smallest_scale

    @property
    def _smallest_scale(self) -> float:
        # The kernels take no amax below 1e-12, or below 1e-30 for the tensor of an e4m3 scale.
        if self.scale == "e4m3":
            return 1e-30 / (448 * self.element.largest) * 2.0**-6
        smallest = 1e-12 / self.element.largest
        return 2.0 ** math.ceil(math.log2(smallest)) if self.scale == "power_of_two" else smallest

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger number, relative to 1."""
        return self.element.eps

    @property
    def overflow(self) -> Overflow:
        """Elements saturate."""
        return "saturate"

    def round_tensor(
        self, x: Tensor, *, rounding: Rounding, key: int, overflow: Overflow | None, out: Tensor | None
    ) -> Tensor:
        """Return `x` rounded to this format; see `round_to`. Random numbers are in the order with `axis` last."""
        from roundoff.kernels.rounding import round_scaled_blocks

        check_saturates(self.name, overflow)
        axes = self._last_axes(x)
        back = [axes.index(axis) for axis in range(len(axes))]
        result = round_scaled_blocks(
            x.permute(axes),
            self.element.grid,
            block=(self.block_rows, self.block_size),
            scale=self.scale,
            rounding=rounding,
            key=key,
            out=None if out is None else out.permute(axes),
        )
        return result.permute(back) if out is None else out

    def _last_axes(self, x: Tensor) -> list[int]:
        """Return the order of axes in which the last two are those of the blocks."""
        num_dims = x.dim()
        if not -max(num_dims, 1) <= self.axis < max(num_dims, 1):
            raise FormatError.explain(
                f"Format '{self.name}' has its blocks along axis {self.axis}, which the tensor does not have.",
                why=f"the tensor has {num_dims} dimensions.",
                fix=f"use dataclasses.replace(fmt, axis=...) with an axis from {-num_dims} to {num_dims - 1}.",
            )
        axes = [*range(num_dims)]
        if axes:
            axes.append(axes.pop(self.axis))
        return axes
