"""How large one ulp is for normalisations and attention: the former lose digits when they subtract the mean.

A row whose mean is far larger than its spread loses digits in `x - mean`, whatever the kernel does, and the gradients
of weight and bias are long sums whose terms cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from roundoff.record.reference.op_call import OpCall


def amax(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the largest absolute value over `dims`, which keep size 1; over all of `x` if it has one dimension."""
    if x.dim() < 2:
        return x.abs().amax()
    return torch.maximum(x.amax(dims, keepdim=True), x.amin(dims, keepdim=True).neg_())


def inner_eps(dtype: torch.dtype) -> float:
    """Return the eps of the numbers inside a kernel, in units of that of its results: 16-bit kernels compute in fp32.

    >>> inner_eps(torch.float32), inner_eps(torch.bfloat16) == 2.0**-16
    (1.0, True)
    """
    return min(1.0, torch.finfo(torch.float32).eps / torch.finfo(dtype).eps)


# How large one ulp is in fused attention and its gradients. A weight is as inexact as the score it comes from is
# large, and the gradients contain that of softmax, p * (dp - sum(p * dp)), which cancels where a query
# attends to few keys. The sizes of all terms are added up head by head, so that no more than one head's
# table of queries and keys is in memory.

Head = tuple[int, int]

_SMALLEST_WEIGHT = 1e-30
"""Well above fp32's smallest normal number, below which kernels treat a weight as 0."""


def attention(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the scales of output and logsumexp; the latter serves the gradient and is as exact as the inputs are."""
    output, logsumexp = references
    found = torch.empty_like(output, dtype=torch.float32)
    for head in _heads(output):
        found[head] = _weights(call, head, logsumexp) @ _part(call, "value", head).abs()
    return [found, (amax(logsumexp, (-1,)) + 1) / inner_eps(call.get("query").dtype)]


def attention_backward(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the scales of the gradients of query, key and value."""
    found = [torch.empty_like(reference, dtype=torch.float32) for reference in references]
    for head in _heads(found[0]):
        for whole, part in zip(found, _gradients(call, head), strict=True):
            whole[head] = part
    return list(found)


def _gradients(call: OpCall, head: Head) -> tuple[Tensor, Tensor, Tensor]:
    weights = _weights(call, head, call.get("logsumexp"))
    grad, out, query, key, value = (
        _part(call, name, head).abs() for name in ("grad_out", "out", "query", "key", "value")
    )
    terms = weights * (grad @ value.t() + (grad * out).sum(-1, keepdim=True)) * _softmax_scale(call)
    return terms @ key, terms.t() @ query, weights.t() @ grad


def _weights(call: OpCall, head: Head, logsumexp: Tensor) -> Tensor:
    """Return each query's weights of the keys, times one plus what the size of a score's terms makes it inexact."""
    query, key, mask = _part(call, "query", head), _part(call, "key", head), call.get("attn_mask")
    scores = (query @ key.t()).mul_(_softmax_scale(call))
    if mask is not None:
        mask = mask.expand(*call.get("query").shape[:2], *mask.shape[-2:])[head]
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if call.get("is_causal"):
        scores = scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu_(1), -torch.inf)
    weights = (scores - logsumexp[head].float().unsqueeze(-1)).exp_().clamp_(min=_SMALLEST_WEIGHT)
    inexact = inner_eps(call.get("query").dtype) * _softmax_scale(call)
    return weights.mul_((query.abs() @ key.abs().t()).mul_(inexact).add_(1))


def _part(call: OpCall, name: str, head: Head) -> Tensor:
    part: Tensor = call.get(name)[head]
    return part.float()


def _softmax_scale(call: OpCall) -> float:
    return float(call.get("scale") or call.get("query").shape[-1] ** -0.5)


def _heads(x: Tensor) -> Iterator[Head]:
    return ((batch, head) for batch in range(x.shape[0]) for head in range(x.shape[1]))


def _layer_norm(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    output, mean, rstd = references
    rows = amax(output, _last(call)) + _offset(call, mean, rstd) * _widest(call)
    return [rows, *_of_statistics(mean, rstd)]


def _batch_norm(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    output, mean, rstd = references[:3]
    if not mean.numel():
        mean, rstd = _running(call)
    offset = _offset(call, mean, rstd) * _sizes(call)
    rows = amax(output, _all_but_channel(output)) + offset.view(_per_channel(output))
    return [rows, *_of_statistics(mean, rstd), *(amax(other, (-1,)) for other in references[3:])]


def _group_norm(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    output, mean, rstd = references
    rows = amax(_group_channels(call, output), (-1,)).squeeze(-1) + _offset(call, mean, rstd) * _widest(call)
    return [_per_group(rows, output), *_of_statistics(mean, rstd)]


def _of_statistics(mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    return mean.abs() + 1 / rstd, rstd * (1 + (mean * rstd).abs())


def _layer_norm_backward(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    grad, rstd, dims = call.get("grad_out"), call.get("rstd"), _last(call)
    lost = 1 + _offset(call, call.get("mean"), rstd)
    others = tuple(range(grad.dim() - len(dims)))
    sums = _sums(grad, others) if others else grad.abs()
    return _drop_unrequested(call, [amax(grad, dims).float() * rstd * lost * _widest(call), sums * lost.amax(), sums])


def _batch_norm_backward(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    grad = call.get("grad_out") if "grad_out" in call.signature.names else call.get("grad_output")
    mean = call.get("save_mean")
    rstd = call.get("save_invstd") if "save_invstd" in call.signature.names else call.get("save_var")
    if mean is None or not mean.numel():
        mean, rstd = _running(call)
    lost, dims = 1 + _offset(call, mean, rstd), _all_but_channel(grad)
    rows = amax(grad, dims).float() * (rstd * lost * _sizes(call)).view(_per_channel(grad))
    sums = _sums(grad, dims)
    return _drop_unrequested(call, [rows, sums * lost, sums])


def _group_norm_backward(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    grad, rstd = call.get("grad_out"), call.get("rstd")
    lost = 1 + _offset(call, call.get("mean"), rstd)
    rows = amax(_group_channels(call, grad), (-1,)).float().squeeze(-1) * rstd * lost * _widest(call)
    sums = _sums(grad, _all_but_channel(grad))
    return _drop_unrequested(call, [_per_group(rows, grad), sums * lost.amax(), sums])


def _sums(grad: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Bound the sum of |grad * x| over `dims`, where x is normalised, by the product of their norms."""
    num_terms = math.prod(grad.shape[d] for d in dims)
    norm: Tensor = torch.linalg.vector_norm(grad, dim=dims, dtype=torch.float32)
    return norm * math.sqrt(num_terms)


def _offset(call: OpCall, mean: Tensor | None, rstd: Tensor) -> Tensor:
    """Return how much larger the error of `x - mean` is than that of x without its mean."""
    if mean is None:
        return torch.zeros_like(rstd)
    return (mean * rstd).abs() * inner_eps(call.get("input").dtype)


def _sizes(call: OpCall) -> Tensor | float:
    weight = call.get("weight")
    return 1.0 if weight is None else weight.abs()


def _widest(call: OpCall) -> Tensor | float:
    weight = call.get("weight")
    return 1.0 if weight is None else weight.abs().amax()


def _drop_unrequested(call: OpCall, found: list[Tensor | None]) -> list[Tensor | None]:
    """Leave out the results that the call does not request."""
    mask: Sequence[bool] | None = call.get("output_mask")
    return found if mask is None else [scale for scale, wanted in zip(found, mask, strict=False) if wanted]


def _running(call: OpCall) -> tuple[Tensor, Tensor]:
    eps = call.get("eps") if "eps" in call.signature.names else call.get("epsilon")
    return call.get("running_mean"), (call.get("running_var") + eps).rsqrt()


def _last(call: OpCall) -> tuple[int, ...]:
    return tuple(range(-len(call.get("normalized_shape")), 0))


def _all_but_channel(x: Tensor) -> tuple[int, ...]:
    return (0, *range(2, x.dim()))


def _per_channel(x: Tensor) -> tuple[int, ...]:
    return (1, -1, *(1 for _ in range(2, x.dim())))


def _group_channels(call: OpCall, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], call.get("group"), -1)


def _per_group(scale: Tensor, x: Tensor) -> Tensor:
    """Spread one number per sample and group over the channels of `x`."""
    channels = scale.repeat_interleave(x.shape[1] // scale.shape[1], dim=1)
    return channels.view(*channels.shape, *(1 for _ in range(2, x.dim())))


NORM_FORMS: dict[str, Callable[[OpCall, Sequence[Tensor]], Sequence[Tensor | None]]] = {
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "_fused_rms_norm_backward": _layer_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_native_batch_norm_legit_functional": _batch_norm,
    "_batch_norm_with_update": _batch_norm,
    "cudnn_batch_norm": _batch_norm,
    "miopen_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "batch_norm_backward": _batch_norm_backward,
    "cudnn_batch_norm_backward": _batch_norm_backward,
}
