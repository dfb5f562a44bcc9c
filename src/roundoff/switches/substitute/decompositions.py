"""Matrix products and attention composed of simpler ops, to check the fused kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the attention output, and the logsumexp of the scores of each query."""
    scores = _scores(query, key, is_causal=is_causal, mask=attn_mask, scale=scale)
    logsumexp = scores.logsumexp(-1)
    return (_weights(scores, logsumexp) @ _wide(value)).to(query.dtype), logsumexp


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value."""
    grad = _wide(grad_out)
    weights = _weights(_scores(query, key, is_causal=is_causal, mask=attn_mask, scale=scale), _wide(logsumexp))
    of_weights = grad @ _wide(value).mT
    of_scores = weights * (of_weights - (grad * _wide(out)).sum(-1, keepdim=True)) * _scale(query, scale)
    found = of_scores @ _wide(key), of_scores.mT @ _wide(query), weights.mT @ grad
    return found[0].to(query.dtype), found[1].to(key.dtype), found[2].to(value.dtype)


def _scores(query: Tensor, key: Tensor, *, is_causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    scores = (_wide(query) @ _wide(key).mT) * _scale(query, scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores


def _weights(scores: Tensor, logsumexp: Tensor) -> Tensor:
    weights = (scores - logsumexp.unsqueeze(-1)).exp()
    return weights.masked_fill(logsumexp.isneginf().unsqueeze(-1), 0)  # a query whose keys are all masked


def _scale(query: Tensor, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


ATTENTION: Final[Mapping[Any, Callable[..., Any]]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward,
}


_NUM_ELEMENTS = 1 << 22
"""How many products are in memory at a time."""


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
