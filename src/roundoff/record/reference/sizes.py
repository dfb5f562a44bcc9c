"""Two measures that scales are made of."""

from __future__ import annotations

import torch
from torch import Tensor


def amax(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the largest size of an element over `dims`, which stay as 1; over all of `x` where it has but one."""
    if x.dim() < 2:
        return x.abs().amax()
    return torch.maximum(x.amax(dims, keepdim=True), x.amin(dims, keepdim=True).neg_())


def inner_eps(dtype: torch.dtype) -> float:
    """Return the eps of the numbers inside a kernel, in units of that of its results: 16-bit kernels compute in fp32.

    >>> inner_eps(torch.float32), inner_eps(torch.bfloat16) == 2.0**-16
    (1.0, True)
    """
    return min(1.0, torch.finfo(torch.float32).eps / torch.finfo(dtype).eps)
