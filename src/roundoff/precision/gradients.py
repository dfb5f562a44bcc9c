"""Checks and unscales all gradients at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from roundoff.precision.weights import Weight


def dense_part(grad: Tensor) -> Tensor:
    """Return the dense values of a gradient: those of a sparse one, or this rank's part of a sharded one."""
    if isinstance(grad, DTensor):
        grad = grad.to_local()
    return grad.coalesce().values() if grad.is_sparse else grad


def with_gradient(weights: Iterable[Weight]) -> list[Weight]:
    """Return the weights whose parameter has a gradient."""
    return [weight for weight in weights if weight.parameter.grad is not None]


def hand_over(weights: Iterable[Weight]) -> None:
    """Give each main weight the gradient of its parameter: the same tensor if the dtype fits, otherwise a copy.

    A second call renews the copies of gradients that were changed in between, for example by clipping.
    """
    for weight in weights:
        if not weight.is_shadowed:
            continue
        grad = weight.parameter.grad
        if grad is None or grad.dtype is weight.main.dtype:
            weight.main.grad = grad
        elif weight.main.grad is None or weight.grad_version != grad._version:
            weight.main.grad = grad.to(weight.main.dtype)
            weight.grad_version = grad._version


def first_nonfinite(weights: Sequence[Weight]) -> str | None:
    """Return the name of the first gradient with NaN or infinity, in the order of the backward pass, or None.

    It takes one pass over the memory and one transfer, however many tensors there are: if the sum of all is finite, so
    are the elements. Only if it is not are the tensors checked one by one.
    """
    grads = [_dense_grad(weight) for weight in weights]
    if not grads or _sums_are_finite(grads):
        return None
    for weight, grad in zip(reversed(weights), reversed(grads), strict=True):
        if not bool(torch.isfinite(grad).all()):
            return weight.name
    return None


def unscale(weights: Sequence[Weight], scale: float) -> None:
    """Divide all gradients by the loss scale, in place."""
    if scale == 1.0:
        return
    groups = defaultdict(list)
    for weight in weights:
        grad = weight.parameter.grad
        assert grad is not None
        if grad.is_sparse:
            grad.mul_(1.0 / scale)
        else:
            groups[grad.device, grad.dtype].append(grad)
    for grads in groups.values():
        torch._foreach_mul_(grads, 1.0 / scale)


def _dense_grad(weight: Weight) -> Tensor:
    grad = weight.parameter.grad
    assert grad is not None
    return dense_part(grad)


def _sums_are_finite(tensors: Sequence[Tensor]) -> bool:
    sums = [tensor.detach().sum(dtype=torch.float32) for tensor in tensors if tensor.numel()]
    # There may be no sums: a rank's part of sharded weights can be empty.
    return not sums or bool(torch.isfinite(torch.stack(sums).sum()))


def agreed_overflow(overflow: str | None, device: torch.device) -> str | None:
    """Return the overflow that any rank has found, so that either all ranks step or none does."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return overflow
    flag = torch.tensor([0.0 if overflow is None else 1.0], device=device)
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    if not flag.item():
        return None
    names: list[str | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(names, overflow)
    return next(name for name in names if name is not None)
