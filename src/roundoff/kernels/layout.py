"""Brings a tensor and its result into a form the compiled kernels can walk: dense memory, in the same order."""

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
    """Return the compiled kernels if they can read the memory of `x`, else None.

    They cannot on an accelerator, nor read a subclass (fake, distributed, ...). Under torch.compile the answer is None,
    too: the torch versions can be traced.
    """
    if torch.compiler.is_compiling() or not x.is_cpu or type(x) not in (Tensor, torch.nn.Parameter):
        return None
    return compiled()


def check_tensors(x: Tensor, out: Tensor | None) -> None:
    """Raise if `x` has no dtype that can be rounded, or `out` cannot take the result."""
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
            fix="pass out=torch.empty_like(x), or leave it away.",
        )
    if out.requires_grad and torch.is_grad_enabled():
        raise KernelError.explain(
            "`out` requires grad.",
            why="rounding into it would change a value that autograd may have saved, and gives no gradient.",
            fix="call it under torch.no_grad(), or pass out=parameter.data.",
        )


def write_dense(x: Tensor, out: Tensor, kernel: Callable[[Tensor, Tensor], None], *, in_order: bool) -> None:
    """Call `kernel(source, target)` so that `target`, copied if need be, ends up in `out`.

    Source and target are dense and walk their elements in the same order, which is row-major if `in_order`. They are
    the same memory or do not overlap.
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
    """Tell autograd that `out` has changed behind its back."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


def _same_walk(x: Tensor, out: Tensor, *, in_order: bool) -> bool:
    if out.is_neg():
        return False
    if x.is_contiguous() and out.is_contiguous():
        return True
    if in_order or x.stride() != out.stride():
        return False
    # Only a dense tensor has a twin with the same strides.
    return torch.empty_like(x, device="meta").stride() == x.stride()


def _overlap_partly(x: Tensor, out: Tensor) -> bool:
    return 0 < abs(x.data_ptr() - out.data_ptr()) < x.numel() * x.element_size()
