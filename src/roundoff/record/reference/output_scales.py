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
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from roundoff.record.reference.layer_scales import NORM_FORMS, amax, attention, attention_backward, inner_eps
from roundoff.record.reference.op_call import PRODUCTS, OpCall, replace_tensors

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
