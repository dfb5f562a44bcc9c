"""The largest finite magnitude of a tensor, in one pass over its memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from roundoff.kernels.layout import DTYPE_CODES, check_tensors, compiled_for


class AbsMax(NamedTuple):
    """Two 0-dim tensors on the tensor's device, so that nothing waits for it."""

    value: Tensor
    num_nonfinite: Tensor


def absmax(x: Tensor) -> AbsMax:
    """Return the largest magnitude of the finite elements of `x`, in its dtype, and the number of the others.

    The value is 0 if there are no finite elements.

    >>> absmax(torch.tensor([1.0, -3.0, float("nan"), float("-inf")]))
    AbsMax(value=tensor(3.), num_nonfinite=tensor(2))
    """
    check_tensors(x, None)
    x = x.detach()
    kernels = compiled_for(x)
    if kernels is None:
        return absmax_torch(x)
    x = _dense(x)
    value = torch.empty((), dtype=x.dtype)
    num_nonfinite = torch.empty((), dtype=torch.int64)
    kernels.absmax(x.data_ptr(), x.numel(), DTYPE_CODES[x.dtype], value.data_ptr(), num_nonfinite.data_ptr())
    return AbsMax(value, num_nonfinite)


def absmax_torch(x: Tensor) -> AbsMax:
    """Do the same in torch operations, for accelerators and machines without the compiled kernels."""
    is_finite = torch.isfinite(x)
    magnitudes = torch.where(is_finite, x.abs(), torch.zeros((), dtype=x.dtype, device=x.device))
    value = magnitudes.amax() if x.numel() else x.new_zeros(())
    return AbsMax(value, (~is_finite).sum())


def _dense(x: Tensor) -> Tensor:
    """Return `x` if its elements fill its memory, in any order; otherwise a contiguous copy."""
    if x.is_contiguous() or torch.empty_like(x, device="meta").stride() == x.stride():
        return x
    return x.contiguous()
