"""How large one ulp is: the size of the numbers that an op combines into each element of its result.

A sum of large numbers that cancel cannot be more exact than its format allows for those large numbers, and the op is
not to blame for that. So an error is measured against

- |f|(|x|) where f is linear: the same op on absolute values, the terms without their cancellation;
- |f(x)| for elementwise functions: both sides have the same inputs, so a good kernel is within an ulp or two of it.
  Functions that saturate (gelu, silu, tanh_backward) are put together from pieces as large as their first argument,
  which is added;
- |f(x)| also where all terms have one sign (norms of vectors, products);
- closed forms of |f|(|x|) for norms and softmax and their gradients;
- the largest |f(x)| of a row for everything else.

Normalisations lose digits when they subtract the mean: a row whose mean is far larger than its spread loses them in
`x - mean`, whatever the kernel does, and the gradients of weight and bias are long sums whose terms cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from roundoff.record.reference.op_call import PRODUCTS, OpCall, replace_tensors


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

Form = Callable[[OpCall, Sequence[Tensor]], Sequence[Tensor | None]]


def scales(call: OpCall, references: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the scale of each of the call's results, broadcastable to it; None stands for its own size."""
    name = call.signature.name
    if name in _LINEAR:
        return [scale.abs_() for scale in _of_sizes(call).run()]
    if name in _SATURATING:
        return [reference.abs() + call.tensors()[0].abs() for reference in references]
    if name in _FORMS:
        return _FORMS[name](call, references)
    if call.signature.is_pointwise or name in _OF_ONE_SIGN:
        return [None] * len(references)
    return [amax(reference, (-1,)) for reference in references]


def _of_sizes(call: OpCall) -> OpCall:
    """Return the call with absolute values for arguments, in a fast format: a scale needs few digits."""
    is_bf16 = all(tensor.dtype is torch.bfloat16 for tensor in call.tensors())
    dtype = torch.bfloat16 if is_bf16 and call.signature.name in PRODUCTS else torch.float32
    negative = ("alpha",) if "alpha" in call.signature.names else ("scalar", "scalars")
    subtracts = call.signature.name in ("sub", "rsub")

    def size(name: str, value: Any) -> Any:
        if name in call.signature.numbers:
            return _size_of(value, sign=-1 if subtracts and name in negative else 1)
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return dtype
        return replace_tensors(value, lambda t: t.to(dtype).abs() if t.is_floating_point() else t)

    sizes = call.change(size)
    if subtracts and "alpha" in call.signature.names and len(sizes.args) < 3:
        sizes.kwargs.setdefault("alpha", -1)
    return sizes


def _size_of(value: Any, *, sign: int) -> Any:
    if isinstance(value, (list, tuple)):
        return [sign * abs(number) for number in value]
    return value if value is None else sign * abs(value)


def _softmax(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    return [amax(reference, (call.get("dim"),)) for reference in references]


def _softmax_backward(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    """Softmax' gradient is y * (g - sum(g * y)): for a peaked row that is a difference of nearly equal numbers."""
    grad, output = call.get("grad_output").float(), call.get("output").float()
    terms = (grad * output).abs_()
    return [output.abs().mul_(terms.sum(call.get("dim"), keepdim=True)).add_(terms)]


def _log_softmax_backward(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    grad, output = call.get("grad_output").float().abs(), call.get("output").float()
    return [output.exp().mul_(grad.sum(call.get("dim"), keepdim=True)).add_(grad)]


def _lstm_backward(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    """The fused kernel computes in the format of its input and returns the gradients in fp32."""
    return [amax(reference, (-1,)) / inner_eps(call.get("input").dtype) for reference in references]


def _gelu_backward(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    """With tanh the gradient contains x * (1 - tanh(u)**2) * du/dx: the rounding of tanh comes out that much larger.

    Beyond 5, tanh is 1 to the last digit.
    """
    grad = call.get("grad_output").float().abs()
    pieces = grad + references[0].abs()
    if call.get("approximate") != "tanh":
        return [pieces]
    x = call.get("self").float().abs().clamp_(max=5)
    inexact = inner_eps(call.get("self").dtype) * math.sqrt(2 / math.pi)
    return [pieces.add_(grad.mul_(x).mul_(x.square().mul_(3 * 0.044715).add_(1)), alpha=inexact)]


def _glu_backward(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradient of the gate contains 1 - sigmoid, which cancels."""
    dim = call.get("dim")
    gated, _ = call.get("self").float().abs().chunk(2, dim)
    size = call.get("grad_output").float().abs().mul_(gated.add_(1))
    return [torch.cat([size, size], dim)]


def _largest_of_head(call: OpCall, references: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradient of a query that attends to one key is 0, so its error comes from the other numbers of its head."""
    return [amax(reference, (-2, -1)) for reference in references]


# fmt: off
_LINEAR = frozenset({
    "add", "sub", "rsub", "addcmul", "addcdiv", "lerp", "sum", "nansum", "mean", "cumsum", "trace",
    "dot", "vdot", "mv", "mm", "bmm", "addmv", "addr", "addmm", "baddbmm", "addbmm", "linear", "matmul",
    "convolution", "convolution_backward", "convolution_overrideable", "_convolution", "conv_tbc",
    "avg_pool2d", "avg_pool3d", "avg_pool2d_backward", "avg_pool3d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
    "upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_trilinear3d_backward",
    "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward",
    "embedding_dense_backward", "_embedding_bag_dense_backward", "index_add", "scatter_add", "index_put",
    "_index_put_impl", "col2im", "unfold_backward",
    "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward",
})

_SATURATING = frozenset({
    "gelu", "silu", "mish", "softplus", "log_sigmoid_forward", "elu", "celu", "selu", "hardswish", "hardsigmoid",
    "tanhshrink", "softshrink", "logit", "logaddexp", "logaddexp2", "lgamma", "digamma",
    "silu_backward", "mish_backward", "softplus_backward", "log_sigmoid_backward", "elu_backward",
    "hardswish_backward", "tanh_backward", "sigmoid_backward", "logit_backward",
})

_OF_ONE_SIGN = frozenset({"linalg_vector_norm", "norm", "prod", "cumprod", "mse_loss"})
# fmt: on

_FORMS: dict[str, Form] = {
    **NORM_FORMS,
    "gelu_backward": _gelu_backward,
    "glu_backward": _glu_backward,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _log_softmax_backward,
    "mkldnn_rnn_layer_backward": _lstm_backward,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    "_scaled_dot_product_flash_attention_backward": _largest_of_head,
    "_scaled_dot_product_efficient_attention_backward": _largest_of_head,
    "_scaled_dot_product_cudnn_attention_backward": _largest_of_head,
}
