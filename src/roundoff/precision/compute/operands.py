"""Rounds the operands of matrix products and convolutions: fp8 and the microscaling formats."""

from __future__ import annotations

import fnmatch
import functools
import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roundoff.errors import RecipeError
from roundoff.formats import BlockFormat, Format, Rounding, ScaledBlocks, format_named, round_to
from roundoff.kernels.summaries import absmax
from roundoff.precision.compute.computation import Computation, ForwardMode, OpenCalls
from roundoff.precision.compute.op_overrides import OpOverride, OpOverrides, op_overrides
from roundoff.precision.compute.sharded_weights import rank
from roundoff.precision.compute.torch_ops import Function, op_name, open_composite
from roundoff.precision.compute.torchao_kernels import KernelChoice
from roundoff.precision.recipe.recipe import OperandScaling, OperandSettings, Recipe
from roundoff.precision.recipe.recipe_environment import is_frozen
from roundoff.precision.recipe.site_formats import CONVOLUTIONS, boundaries, override_sites, site_of

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


_LARGEST_SCALE: Final = 2.0**126


class OperandScales:
    """Per-tensor scales that map a tensor's largest magnitude to the format's largest number.

    `delayed` uses the largest magnitude of the last steps: hardware that measures it while rounding then needs no extra
    pass over the tensor. The first step has no history and uses its own. Nothing waits for a device.
    """

    def __init__(self, scaling: OperandScaling, *, amax_history: int) -> None:
        self._scaling = scaling
        self._length = amax_history
        self._histories: dict[str, Tensor] = {}
        self._num_followed: Counter[str] = Counter()
        self._kept: dict[str, Tensor] = {}
        """The largest magnitudes at which the scales of `current` are frozen."""

    def scale(self, x: Tensor, fmt: Format, *, key: str) -> Tensor | None:
        """Return the factor for `x` before rounding, or None for 1; `key` identifies the operand."""
        if self._scaling == "none" or x.numel() == 0:
            return None
        found = absmax(x)
        amax = found.value.float()
        frozen = is_frozen(num_steps=self._num_followed[key])
        if self._scaling == "delayed":
            amax = self._largest_recent(amax, key, frozen=frozen)
        elif frozen:
            amax = self._kept.setdefault(key, amax)
        if torch.is_grad_enabled() or key.endswith(".gradient"):
            self._num_followed[key] += 1
        scale = torch.where(amax > 0, fmt.largest / amax, torch.ones_like(amax)).clamp_(max=_LARGEST_SCALE)
        # Rounding would saturate infinities: a tensor that has any becomes NaN instead, so that they are not hidden.
        return scale.masked_fill(found.num_nonfinite > 0, torch.nan)

    def _largest_recent(self, amax: Tensor, key: str, *, frozen: bool) -> Tensor:
        """Return the largest magnitude of the last steps, or `amax` in the first one; add `amax` to the history."""
        history = self._histories.get(key)
        if history is None:
            history = self._histories[key] = torch.zeros(self._length, device=amax.device)
            frozen = False
        largest = history.max()
        if not frozen and (torch.is_grad_enabled() or key.endswith(".gradient")):
            history.copy_(torch.cat([amax.reshape(1), history[:-1]]))
        return torch.where(largest > 0, largest, amax)

    def forget(self) -> None:
        """Clear all histories."""
        self._histories.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the histories."""
        return {"amax_histories": dict(self._histories)} if self._histories else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from histories of the same length; others start empty."""
        for key, history in state.get("amax_histories", {}).items():
            if len(history) == self._length:
                self._histories[key] = history.clone()


Places = tuple[tuple[int, int], tuple[int, int], int]
"""Argument number and contracted axis of both operands, and the axis of blocks in the result's gradient."""

_MATMUL: Final[Places] = ((0, -1), (1, -2), -1)
_ADDED: Final[Places] = ((1, -1), (2, -2), -1)
_PRODUCTS: Final[Mapping[Function, Places]] = {
    F.linear: ((0, -1), (1, -1), -1),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), ((0, 1), (1, 1), 1)),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), ((0, 1), (1, 0), 1)),
    **dict.fromkeys((torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm, Tensor.bmm), _MATMUL),
    Tensor.__matmul__: _MATMUL,
    **dict.fromkeys((torch.addmm, torch.baddbmm, Tensor.addmm, Tensor.baddbmm), _ADDED),
}


class OperandRounding(Computation):
    """Rounds the inputs and weights of products in forward, and the gradient of their result in backward.

    Both products of the backward pass then use the rounded gradient and the rounded operands of the forward, as on
    hardware. Everything else is fp32; fused attention and recurrent layers are not rounded.
    """

    reenters = True

    def __init__(self, recipe: Recipe, kernels: KernelChoice | None = None) -> None:
        super().__init__(recipe)
        settings = recipe.operands
        self._kernels = kernels
        self.arithmetic = "emulated" if kernels is None or kernels.multiply is None else "native (torchao)"
        self._scales = OperandScales(settings.scaling, amax_history=settings.amax_history)
        self._scope = _OperandScope()

    def attach(self, model: nn.Module) -> None:
        """Name the weights, and switch the formats at overridden sites."""
        self._names = {parameter: site_of(name) for name, parameter in model.named_parameters()}
        for module in wide_layers(model, self.recipe):
            self.bracket(module, around=partial(self._rounding_to, _uniform(self.recipe.operands, "bf16")))
        for module, fmt, _ in boundaries(model, self.recipe):
            formats = None if fmt == "fp32" else _uniform(self.recipe.operands, fmt)
            self.bracket(module, around=partial(self._rounding_to, formats))
        self._ops = OpOverrides(model, self.recipe.overrides)
        if self._ops:
            _check_products(op_overrides(model, self.recipe.overrides), self.recipe)
            self._ops.follow(self)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Round operands inside the model's forward."""
        mode = RoundOperands(self.calls, self._scope, self._scales, self._names, self._ops or None)
        mode.kernels, mode.kernels_for = self._kernels, self.recipe.operands
        with self._rounding_to(self.recipe.operands), mode:
            yield

    @contextmanager
    def _rounding_to(self, formats: OperandSettings | None) -> Iterator[None]:
        before, self._scope.formats = self._scope.formats, formats
        try:
            yield
        finally:
            self._scope.formats = before

    def state_dict(self) -> dict[str, Any]:
        """Return the histories of delayed scaling."""
        return self._scales.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from these histories."""
        self._scales.load_state_dict(state)

    def recall(self, state: dict[str, Any]) -> None:
        """Return to these histories; all others are cleared."""
        self._scales.forget()
        self._scales.load_state_dict(state)


class _OperandScope(threading.local):
    formats: OperandSettings | None = None


class RoundOperands(ForwardMode):
    """Rounds the two operands of every product and the gradient of its result; there is one for each forward."""

    def __init__(
        self,
        calls: OpenCalls,
        scope: _OperandScope,
        scales: OperandScales,
        names: Mapping[Any, str],
        ops: OpOverrides | None = None,
    ) -> None:
        super().__init__(calls)
        self.kernels: KernelChoice | None = None
        """What multiplies in linear layers instead of us."""
        self.kernels_for: OperandSettings | None = None
        """The formats for which it does: what an override changes is emulated."""
        self._scope = scope
        self._ops = ops
        self._scales = scales
        self._names = names
        self._calls: Counter[str] = Counter()

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` on rounded operands if it is a product."""
        kwargs = kwargs or {}
        formats, places = self._scope.formats, _PRODUCTS.get(func)
        if self._ops is not None:
            formats = self._formats_for(func, formats)
        if formats is None or self._open_calls.has_ended():
            return func(*args, **kwargs)
        if places is None:
            if inner := open_composite(func):
                with self:
                    return inner(*args, **kwargs)
            return func(*args, **kwargs)
        (first, first_axis), (second, second_axis), result_axis = places
        if len(args) <= second:  # keyword operands are rare, and torch has several names for them
            return func(*args, **kwargs)
        if formats.layers_only and args[second] not in self._names:
            return func(*args, **kwargs)
        if func is F.linear and formats is self.kernels_for and args[second] in self._names:
            kernels = self.kernels
            if kernels is not None and kernels.multiply is not None and kernels.fits(args[first], args[second]):
                return _add_bias(kernels.multiply(args[first], args[second]), *args[2:], **kwargs)
        key = self._key(func, args[second])
        if formats.weight_gradient and func is F.linear:
            return self._linear(formats, key, *args, **kwargs)
        operands = list(args)
        operands[first] = self._operand(args[first], formats.forward, first_axis, f"{key}.first")
        operands[second] = self._operand(args[second], formats.weight or formats.forward, second_axis, f"{key}.second")
        result = func(*operands, **kwargs)
        if result.requires_grad and formats.backward != "fp32":
            result.register_hook(self._gradient_rounder(formats, result_axis, f"{key}.gradient"))
        return result

    def _formats_for(self, func: Function, formats: OperandSettings | None) -> OperandSettings | None:
        assert self._ops is not None
        fmt = self._ops.format_of(func)
        if fmt is None:
            return formats
        return None if fmt == "fp32" else _uniform(formats or OperandSettings(), fmt)

    def _key(self, func: Function, weight: Any) -> str:
        """Return a name that is the same in every step: that of the weight or function, with the number of the call."""
        base = self._names.get(weight) or func.__name__
        self._calls[base] += 1
        return f"{base}#{self._calls[base] - 1}"

    def _operand(self, x: Tensor, name: str, axis: int, key: str) -> Tensor:
        fmt = with_axis(format_named(name), axis, x.dim())
        return _Operand.apply(x, fmt, self._scales.scale(x, fmt, key=key))  # type: ignore[no-any-return,no-untyped-call]

    def _linear(
        self, formats: OperandSettings, key: str, x: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Compute a linear layer whose three products have formats of their own."""

        def round_part(values: Tensor, name: str, *, axis: int, part: str, stochastic: bool = False) -> Tensor:
            if name == "fp32":
                return values
            fmt = with_axis(format_named(name), axis, values.dim())
            return _round_operand(
                values, fmt, self._scales.scale(values, fmt, key=f"{key}.{part}"), stochastic=stochastic
            )

        return _add_bias(LinearProducts.apply(x, weight, formats, round_part), bias)  # type: ignore[no-untyped-call]

    def _gradient_rounder(self, formats: OperandSettings, axis: int, key: str) -> Any:
        def round_gradient(grad: Tensor) -> Tensor:
            fmt = with_axis(format_named(formats.backward), axis, grad.dim())
            scale = self._scales.scale(grad, fmt, key=key)
            return _round_operand(grad, fmt, scale, stochastic=formats.backward_rounding == "stochastic")

        return round_gradient


def _add_bias(product: Tensor, bias: Tensor | None = None) -> Tensor:
    return product if bias is None else product + bias


def _check_products(overrides: Sequence[OpOverride], recipe: Recipe) -> None:
    products = {op_name(function) for function in _PRODUCTS}
    for override in overrides:
        if override.fmt != "fp32" and not fnmatch.filter(products, override.op):
            raise RecipeError.explain(
                f'Recipe \'{recipe.name}\' cannot have the override "{override.key}" = "{override.fmt}".',
                why=f"it rounds operands of products ({', '.join(sorted(products))}) and computes the rest in fp32.",
                fix="for other ops use O1, O2, bf16, or fp32 with overrides.",
            )


class _Operand(torch.autograd.Function):
    """A rounded copy with an unchanged gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: Format, scale: Tensor | None) -> Tensor:
        return _round_operand(x, fmt, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad, None, None


def _round_operand(x: Tensor, fmt: Format, scale: Tensor | None, *, stochastic: bool = False) -> Tensor:
    rounding: Rounding = "stochastic" if stochastic else "nearest"
    stream = rank() if stochastic else 0
    if scale is None:
        return round_to(x, fmt, rounding=rounding, stream=stream)
    scaled = x.detach() * scale
    # Values that exceed a delayed scale saturate, as on hardware.
    return round_to(scaled, fmt, rounding=rounding, stream=stream, overflow="saturate", out=scaled).div_(scale)


def with_axis(fmt: Format, axis: int, num_dims: int) -> Format:
    """Return the format with its blocks along an axis of a tensor; a format without blocks stays as it is."""
    if not isinstance(fmt, BlockFormat | ScaledBlocks):
        return fmt
    axis = axis if -num_dims <= axis < num_dims else -1
    if isinstance(fmt, ScaledBlocks) and num_dims > 2:
        return replace(fmt, axis=axis, block_rows=1)  # the kernel of a convolution has no second axis for a block
    return replace(fmt, axis=axis)


def _uniform(settings: OperandSettings, fmt: str) -> OperandSettings:
    """Return the settings with one format for all operands."""
    return replace(settings, forward=fmt, weight="", backward=fmt, weight_gradient="", hadamard=False)


def wide_layers(model: nn.Module, recipe: Recipe) -> list[nn.Module]:
    """Return the last layers of the model, as many as the recipe keeps wide, without those that have an override."""
    overridden = override_sites(model, recipe.overrides)
    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, *CONVOLUTIONS))]
    num_wide = math.ceil(recipe.operands.wide_share * len(layers))
    return [layer for layer in layers[len(layers) - num_wide :] if layer not in overridden]
