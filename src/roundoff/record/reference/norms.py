"""What one ulp is for normalisations: their error comes from the mean that they take away.

A row whose mean is far larger than its spread loses digits in `x - mean`, whatever the kernel does, and the gradients
of weight and bias are long sums whose terms cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from roundoff.record.reference.call import Call
from roundoff.record.reference.sizes import amax, inner_eps


def _layer_norm(call: Call, references: Sequence[Tensor]) -> list[Tensor | None]:
    output, mean, rstd = references
    rows = amax(output, _last(call)) + _offset(call, mean, rstd) * _widest(call)
    return [rows, *_of_statistics(mean, rstd)]


def _batch_norm(call: Call, references: Sequence[Tensor]) -> list[Tensor | None]:
    output, mean, rstd = references[:3]
    if not mean.numel():
        mean, rstd = _running(call)
    offset = _offset(call, mean, rstd) * _sizes(call)
    rows = amax(output, _all_but_channel(output)) + offset.view(_per_channel(output))
    return [rows, *_of_statistics(mean, rstd), *(amax(other, (-1,)) for other in references[3:])]


def _group_norm(call: Call, references: Sequence[Tensor]) -> list[Tensor | None]:
    output, mean, rstd = references
    rows = amax(_grouped(call, output), (-1,)).squeeze(-1) + _offset(call, mean, rstd) * _widest(call)
    return [_per_group(rows, output), *_of_statistics(mean, rstd)]


def _of_statistics(mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    return mean.abs() + 1 / rstd, rstd * (1 + (mean * rstd).abs())


def _layer_norm_backward(call: Call, references: Sequence[Tensor]) -> list[Tensor | None]:
    grad, rstd, dims = call.get("grad_out"), call.get("rstd"), _last(call)
    lost = 1 + _offset(call, call.get("mean"), rstd)
    others = tuple(range(grad.dim() - len(dims)))
    sums = _sums(grad, others) if others else grad.abs()
    return _wanted(call, [amax(grad, dims).float() * rstd * lost * _widest(call), sums * lost.amax(), sums])


def _batch_norm_backward(call: Call, references: Sequence[Tensor]) -> list[Tensor | None]:
    grad = call.get("grad_out") if "grad_out" in call.signature.names else call.get("grad_output")
    mean = call.get("save_mean")
    rstd = call.get("save_invstd") if "save_invstd" in call.signature.names else call.get("save_var")
    if mean is None or not mean.numel():
        mean, rstd = _running(call)
    lost, dims = 1 + _offset(call, mean, rstd), _all_but_channel(grad)
    rows = amax(grad, dims).float() * (rstd * lost * _sizes(call)).view(_per_channel(grad))
    sums = _sums(grad, dims)
    return _wanted(call, [rows, sums * lost, sums])


def _group_norm_backward(call: Call, references: Sequence[Tensor]) -> list[Tensor | None]:
    grad, rstd = call.get("grad_out"), call.get("rstd")
    lost = 1 + _offset(call, call.get("mean"), rstd)
    rows = amax(_grouped(call, grad), (-1,)).float().squeeze(-1) * rstd * lost * _widest(call)
    sums = _sums(grad, _all_but_channel(grad))
    return _wanted(call, [_per_group(rows, grad), sums * lost.amax(), sums])


def _sums(grad: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Bound the sum of |grad * x| over `dims`, where x is normalised, by the product of their norms."""
    num_terms = math.prod(grad.shape[d] for d in dims)
    norm: Tensor = torch.linalg.vector_norm(grad, dim=dims, dtype=torch.float32)
    return norm * math.sqrt(num_terms)


def _offset(call: Call, mean: Tensor | None, rstd: Tensor) -> Tensor:
    """Return how much larger the error of `x - mean` is than that of x without its mean."""
    if mean is None:
        return torch.zeros_like(rstd)
    return (mean * rstd).abs() * inner_eps(call.get("input").dtype)


def _sizes(call: Call) -> Tensor | float:
    weight = call.get("weight")
    return 1.0 if weight is None else weight.abs()


def _widest(call: Call) -> Tensor | float:
    weight = call.get("weight")
    return 1.0 if weight is None else weight.abs().amax()


def _wanted(call: Call, found: list[Tensor | None]) -> list[Tensor | None]:
    """Leave out what the call was told not to compute."""
    mask: Sequence[bool] | None = call.get("output_mask")
    return found if mask is None else [scale for scale, wanted in zip(found, mask, strict=False) if wanted]


def _running(call: Call) -> tuple[Tensor, Tensor]:
    eps = call.get("eps") if "eps" in call.signature.names else call.get("epsilon")
    return call.get("running_mean"), (call.get("running_var") + eps).rsqrt()


def _last(call: Call) -> tuple[int, ...]:
    return tuple(range(-len(call.get("normalized_shape")), 0))


def _all_but_channel(x: Tensor) -> tuple[int, ...]:
    return (0, *range(2, x.dim()))


def _per_channel(x: Tensor) -> tuple[int, ...]:
    return (1, -1, *(1 for _ in range(2, x.dim())))


def _grouped(call: Call, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], call.get("group"), -1)


def _per_group(scale: Tensor, x: Tensor) -> Tensor:
    """Spread one number per sample and group over the channels of `x`."""
    channels = scale.repeat_interleave(x.shape[1] // scale.shape[1], dim=1)
    return channels.view(*channels.shape, *(1 for _ in range(2, x.dim())))


NORM_FORMS: dict[str, Callable[[Call, Sequence[Tensor]], Sequence[Tensor | None]]] = {
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
