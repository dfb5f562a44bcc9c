"""Matrix products by multiplying and adding up, for those who do not trust the kernel of a product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

_NUM_ELEMENTS = 1 << 22
"""How many factors are in memory at a time."""


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Return the products of two batches of matrices, adding up in at least fp32.

    >>> bmm(torch.ones(1, 2, 3), torch.ones(1, 3, 4)).tolist()
    [[[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]]
    """
    wide = torch.promote_types(a.dtype, torch.float32) if a.is_floating_point() else a.dtype
    rows = max(1, _NUM_ELEMENTS // max(1, b.numel()))
    parts = [(part.unsqueeze(-1).to(wide) * b.unsqueeze(1)).sum(2, dtype=wide) for part in a.split(rows, dim=1)]
    return torch.cat(parts, 1).to(a.dtype)


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices, adding up in at least fp32."""
    return bmm(a[None], b[None])[0]


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return the product of two matrices plus `bias`."""
    product = alpha * mm(a, b)
    return product if beta == 0 else product + beta * bias


def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return the products of two batches of matrices plus `bias`."""
    product = alpha * bmm(a, b)
    return product if beta == 0 else product + beta * bias


PRODUCTS: Final[Mapping[Any, Callable[..., Any]]] = {
    torch.ops.aten.mm.default: mm,
    torch.ops.aten.bmm.default: bmm,
    torch.ops.aten.addmm.default: addmm,
    torch.ops.aten.baddbmm.default: baddbmm,
}
