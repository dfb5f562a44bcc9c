"""A linear layer whose three products, forward, input gradient and weight gradient, have formats of their own."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch
from torch import Tensor

from roundoff.formats import BlockFormat, ScaledBlocks, format_named
from roundoff.precision.recipe.recipe import OperandSettings

_BLOCK = 16
_SIGN_SEED = 16


class RoundOperand(Protocol):
    """Rounds one operand of a product to a format with its blocks along `axis`; `part` names it for its scale."""

    def __call__(self, values: Tensor, name: str, *, axis: int, part: str, stochastic: bool = False) -> Tensor:
        """Return the rounded operand."""


class LinearProducts(torch.autograd.Function):
    """`x @ weight.T`; every product has both operands rounded, in blocks along the axis that it sums over.

    Weights in square blocks are rounded once for two products. The samples are those of all leading axes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, formats: OperandSettings, rounded: RoundOperand) -> Tensor:
        """Multiply the rounded input by the rounded weight."""
        name = formats.weight or formats.forward
        narrow = rounded(weight, name, axis=-1, part="second")
        ctx.save_for_backward(x, weight, narrow if _is_square(name) else None)
        ctx.formats, ctx.rounded = formats, rounded
        return torch.nn.functional.linear(rounded(x, formats.forward, axis=-1, part="first"), narrow)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Multiply the rounded gradient by the weight rounded along its rows, and by the input along the samples."""
        x, weight, narrow = ctx.saved_tensors
        formats, rounded = ctx.formats, ctx.rounded
        stochastic = formats.backward_rounding == "stochastic"
        of_input = of_weight = None
        if ctx.needs_input_grad[0]:
            if narrow is None:
                narrow = rounded(weight, formats.weight or formats.forward, axis=0, part="second")
            first = rounded(grad, formats.backward, axis=-1, part="gradient", stochastic=stochastic)
            of_input = first @ narrow
        if ctx.needs_input_grad[1]:
            errors, samples = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
            if formats.hadamard:
                errors, samples = mix_samples(errors), mix_samples(samples)
            name = formats.weight_gradient
            errors = rounded(errors, name, axis=0, part="samples.gradient", stochastic=stochastic)
            of_weight = errors.t() @ rounded(samples, name, axis=0, part="samples")
        return of_input, of_weight, None, None


def mix_samples(x: Tensor) -> Tensor:
    """Multiply every 16 rows by an orthogonal matrix; rows beyond the last 16 stay as they are.

    >>> x, y = torch.randn(32, 3), torch.randn(32, 2)
    >>> torch.allclose(mix_samples(x).t() @ mix_samples(y), x.t() @ y, atol=1e-4)
    True
    """
    whole = x.shape[0] - x.shape[0] % _BLOCK
    mixed = _hadamard(x.device, x.dtype) @ x[:whole].reshape(-1, _BLOCK, x.shape[1])
    return torch.cat([mixed.reshape(whole, x.shape[1]), x[whole:]])


@functools.cache
def _hadamard(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a Hadamard matrix of norm 1 whose columns have random signs: the same in every process and step."""
    matrix = torch.ones(1, 1)
    while len(matrix) < _BLOCK:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (_BLOCK,), generator=torch.Generator().manual_seed(_SIGN_SEED)) * 2 - 1
    signed: Tensor = matrix * signs / _BLOCK**0.5
    return signed.to(device=device, dtype=dtype)


def _is_square(name: str) -> bool:
    """Whether a format rounds a matrix and its transpose alike."""
    fmt = format_named(name)
    if isinstance(fmt, ScaledBlocks):
        return fmt.block_rows == fmt.block_size
    return not isinstance(fmt, BlockFormat)
