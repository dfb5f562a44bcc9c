"""The difference of two tensors in torch operations: for accelerators, and where no compiler was at hand.

Counts, the largest difference and its place equal those of the compiled kernel exactly, sums to about 1e-12.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def difference_torch(first: Tensor, second: Tensor) -> Tensor:
    """Return the twelve numbers of csrc/difference.h, as float64 on the device of `first`."""
    same_bits = first.dtype == second.dtype and torch.equal(_bits(first), _bits(second))
    a, b = first.reshape(-1).double(), second.reshape(-1).double()
    kinds = _kind(a), _kind(b)
    is_finite = (kinds[0] == 0) & (kinds[1] == 0)
    unlike = kinds[0] != kinds[1]
    a, b = torch.where(is_finite, a, 0), torch.where(is_finite, b, 0)
    apart = b - a
    largest, largest_at = _largest(apart.abs())
    numbers = [
        largest,
        largest_at,
        apart.square().sum(),
        a.square().sum(),
        b.square().sum(),
        (a * b).sum(),
        (apart != 0).sum() + unlike.sum(),
        (kinds[0] != 0).sum(),
        (kinds[1] != 0).sum(),
        unlike.sum(),
        _largest(unlike.double())[1],
        a.new_tensor(float(same_bits)),
    ]
    return torch.stack([number.double() for number in numbers])


def _kind(x: Tensor) -> Tensor:
    """Return 0 for finite numbers, and another number for NaN, +inf and -inf each."""
    return x.isnan().to(torch.int8) + 2 * x.isposinf().to(torch.int8) + 3 * x.isneginf().to(torch.int8)


def _largest(magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest, and where it stands first; 0 and -1 where there is none above 0."""
    if not magnitudes.numel():
        return magnitudes.new_zeros(()), magnitudes.new_full((), -1)
    largest = magnitudes.amax()
    at = magnitudes.argmax()
    return largest, torch.where(largest > 0, at, -1)


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(_WORDS[x.element_size()])
