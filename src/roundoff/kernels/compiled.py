"""Says which tensors the compiled kernels can read."""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels.load import compiled_kernels as compiled_kernels
from roundoff.kernels.load import kernels_in_use as kernels_in_use

READABLE_DTYPE_CODES: dict[torch.dtype, int] = {
    torch.float64: 0,
    torch.float32: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
    torch.int64: 4,
    torch.int32: 5,
    torch.int16: 6,
    torch.int8: 7,
    torch.uint8: 8,
    torch.bool: 8,
}
"""The dtypes that the compiled summary reads; for others the torch version is used."""

DTYPE_CODES = {
    dtype: READABLE_DTYPE_CODES[dtype] for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}
"""The dtypes that can be rounded."""


def compiled_for(x: Tensor) -> ModuleType | None:
    """Return the compiled kernels if they can read the memory of `x`, otherwise None.

    They cannot read tensors on accelerators, nor subclasses (fake, distributed, ...). Under torch.compile the result is
    None too, because it can trace the torch versions.
    """
    if torch.compiler.is_compiling() or not x.is_cpu or type(x) not in (Tensor, torch.nn.Parameter):
        return None
    return compiled_kernels()


def widest_float(device: torch.device) -> torch.dtype:
    """Return the format to add up in: fp64 where the device has it, otherwise fp32."""
    return torch.float64 if device.type == "cpu" or has_fp64(device) else torch.float32


@functools.cache
def has_fp64(device: torch.device) -> bool:
    """Return whether a device has numbers of 64 bits; some accelerators do not."""
    try:
        return torch.zeros((), dtype=torch.float64, device=device).dtype is torch.float64
    except (TypeError, RuntimeError):
        return False


def where_fp64_is(x: Tensor) -> Tensor:
    """Return a tensor on a device that has numbers of 64 bits: its own, or else the CPU."""
    return x if x.is_cpu or has_fp64(x.device) else x.cpu()


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
