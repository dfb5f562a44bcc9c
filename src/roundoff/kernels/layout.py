"""Prepares tensors for the compiled kernels, which need dense memory in the same order for source and result."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels import row
from roundoff.kernels.availability import compiled

DTYPE_CODES = {dtype: row.DTYPE_CODES[dtype] for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)}
"""The dtypes that can be rounded."""


def compiled_for(x: Tensor) -> ModuleType | None:
    """Return the compiled kernels if they can read the memory of `x`, otherwise None.

    They cannot read tensors on accelerators, nor subclasses (fake, distributed, ...). Under torch.compile the result is
    None too, because it can trace the torch versions.
    """
    if torch.compiler.is_compiling() or not x.is_cpu or type(x) not in (Tensor, torch.nn.Parameter):
        return None
    return compiled()


def check_tensors(x: Tensor, out: Tensor | None) -> None:
    """Raise if `x` cannot be rounded, or `out` cannot hold the result."""
    if x.dtype not in DTYPE_CODES or x.layout != torch.strided:
        raise KernelError.explain(
            f"A tensor of {x.dtype}, {x.layout}, cannot be rounded.",
            why="only dense float64, float32, bfloat16 and float16 tensors can.",
            fix="convert it first, for example with x.float() or x.to_dense().",
        )
    if out is None:
        return
    if (out.shape, out.dtype, out.device) != (x.shape, x.dtype, x.device):
        raise KernelError.explain(
            f"`out` is {tuple(out.shape)} {out.dtype} on {out.device}.",
            why=f"the result is {tuple(x.shape)} {x.dtype} on {x.device}, like `x`.",
            fix="pass out=torch.empty_like(x), or omit `out`.",
        )
    if out.requires_grad and torch.is_grad_enabled():
        raise KernelError.explain(
            "`out` requires grad.",
            why="rounding into it could change a value that autograd has saved, and has no gradient.",
            fix="call it under torch.no_grad(), or pass out=parameter.data.",
        )


def write_dense(x: Tensor, out: Tensor, kernel: Callable[[Tensor, Tensor], None], *, in_order: bool) -> None:
    """Call `kernel(source, target)` such that the result ends up in `out`, copied if necessary.

    Source and target are dense with their elements in the same order, row-major if `in_order`. They are the same memory
    or do not overlap.
    """
    if _same_walk(x, out, in_order=in_order) and not _overlap_partly(x, out):
        kernel(x, out)
    else:
        source = x.contiguous()
        target = torch.empty_like(source)
        kernel(source, target)
        with torch.no_grad():
            out.copy_(target)


def mark_written(out: Tensor) -> None:
    """Tell autograd that `out` was modified in place."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


def _same_walk(x: Tensor, out: Tensor, *, in_order: bool) -> bool:
    if out.is_neg():
        return False
    if x.is_contiguous() and out.is_contiguous():
        return True
    if in_order or x.stride() != out.stride():
        return False
    # `empty_like` preserves the strides of dense tensors only.
    return torch.empty_like(x, device="meta").stride() == x.stride()


def _overlap_partly(x: Tensor, out: Tensor) -> bool:
    return 0 < abs(x.data_ptr() - out.data_ptr()) < x.numel() * x.element_size()
