"""What one ulp is in fused attention and its gradients.

A weight is as inexact as the score it comes from is large, and the gradients contain that of softmax,
p * (dp - sum(p * dp)), which cancels where a query attends to few keys. The sizes of all terms are added up head by
head, so that no more than one head's table of queries and keys is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from roundoff.record.reference.call import Call
from roundoff.record.reference.sizes import amax, inner_eps

Head = tuple[int, int]

_SMALLEST_WEIGHT = 1e-30
"""Far enough above fp32's smallest normal number, below which kernels take a weight for 0."""


def attention(call: Call, references: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the scales of output and logsumexp; the latter serves the gradient and is as exact as the inputs are."""
    output, logsumexp = references
    found = torch.empty_like(output, dtype=torch.float32)
    for head in _heads(output):
        found[head] = _weights(call, head, logsumexp) @ _part(call, "value", head).abs()
    return [found, (amax(logsumexp, (-1,)) + 1) / inner_eps(call.get("query").dtype)]


def attention_backward(call: Call, references: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the scales of the gradients of query, key and value."""
    found = [torch.empty_like(reference, dtype=torch.float32) for reference in references]
    for head in _heads(found[0]):
        for whole, part in zip(found, _gradients(call, head), strict=True):
            whole[head] = part
    return list(found)


def _gradients(call: Call, head: Head) -> tuple[Tensor, Tensor, Tensor]:
    weights = _weights(call, head, call.get("logsumexp"))
    grad, out, query, key, value = (
        _part(call, name, head).abs() for name in ("grad_out", "out", "query", "key", "value")
    )
    terms = weights * (grad @ value.t() + (grad * out).sum(-1, keepdim=True)) * _scale(call)
    return terms @ key, terms.t() @ query, weights.t() @ grad


def _weights(call: Call, head: Head, logsumexp: Tensor) -> Tensor:
    """Return each query's weights of the keys, times one plus what the size of a score's terms makes it inexact."""
    query, key, mask = _part(call, "query", head), _part(call, "key", head), call.get("attn_mask")
    scores = (query @ key.t()).mul_(_scale(call))
    if mask is not None:
        mask = mask.expand(*call.get("query").shape[:2], *mask.shape[-2:])[head]
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if call.get("is_causal"):
        scores = scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu_(1), -torch.inf)
    weights = (scores - logsumexp[head].float().unsqueeze(-1)).exp_().clamp_(min=_SMALLEST_WEIGHT)
    inexact = inner_eps(call.get("query").dtype) * _scale(call)
    return weights.mul_((query.abs() @ key.abs().t()).mul_(inexact).add_(1))


def _part(call: Call, name: str, head: Head) -> Tensor:
    part: Tensor = call.get(name)[head]
    return part.float()


def _scale(call: Call) -> float:
    return float(call.get("scale") or call.get("query").shape[-1] ** -0.5)


def _heads(x: Tensor) -> Iterator[Head]:
    return ((batch, head) for batch in range(x.shape[0]) for head in range(x.shape[1]))
