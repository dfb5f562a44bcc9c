"""Narrow formats computed by the device itself: the whole model cast, op by op as apex O1, or under torch.autocast."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.errors import RecipeError
from roundoff.precision.compute.computation import Computation, ForwardMode, OpenCalls, cast_floats, map_floats
from roundoff.precision.compute.torch_ops import PRODUCTS, WIDE, WIDEST, Function, open_composite
from roundoff.precision.recipe.site_formats import (
    Boundary,
    boundaries,
    dtype_of,
    formats_of_modules,
    formats_of_parameters,
    native_dtype,
    norm_boundaries,
)


class _ProductDtype(threading.local):
    """The dtype of products in this thread, at this moment; with fp32 nothing is cast."""

    dtype = torch.float32


class NativeLists(Computation):
    """Weights stay fp32; during the model's forward, each op gets its operands in the dtype of its list.

    As in apex O1, products are narrow, sums and the like fp32.
    """

    reenters = True

    def attach(self, model: nn.Module) -> None:
        """Switch the dtype at overridden sites."""
        self._scope = _ProductDtype()
        for boundary in boundaries(model, self.recipe):
            self._bracket_site(boundary.module, boundary.fmt)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Cast operands inside the model's forward."""
        with self._in_format(self.recipe.compute_format), CastOperands(self.calls, self._scope):
            yield

    @contextmanager
    def _in_format(self, fmt: str) -> Iterator[None]:
        before = self._scope.dtype
        self._scope.dtype = native_dtype(fmt)
        try:
            yield
        finally:
            self._scope.dtype = before

    def _bracket_site(self, module: nn.Module, fmt: str) -> None:
        native_dtype(fmt)
        self.bracket(module, inputs=lambda values: cast_floats(values, fmt), around=lambda: self._in_format(fmt))


class CastOperands(ForwardMode):
    """Casts the operands of functions, by their list.

    There is one for each forward, which caches the narrow copies of weights, so that a shared weight is cast once.
    """

    def __init__(self, calls: OpenCalls, scope: _ProductDtype) -> None:
        super().__init__(calls)
        self._scope = scope
        self._copies: dict[tuple[Tensor, bool, torch.dtype], Tensor] = {}

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` on operands of the right dtype."""
        kwargs = kwargs or {}
        if self._scope.dtype is torch.float32 or self._open_calls.has_ended():
            return func(*args, **kwargs)
        if func in PRODUCTS:
            args, kwargs = map_floats((args, kwargs), self._narrow)
        elif func in WIDE or (func in WIDEST and _is_mixed(args)):
            args, kwargs = map_floats((args, kwargs), _widen)
        elif inner := open_composite(func):
            with self:  # torch turns a mode off while it handles a call; the calls inside have operands to cast, too
                return inner(*args, **kwargs)
        return func(*args, **kwargs)

    def _narrow(self, x: Tensor) -> Tensor:
        if x.dtype is not torch.float32:
            return x
        dtype = self._scope.dtype
        if not x.is_leaf or not x.requires_grad:
            return x.to(dtype)
        key = (x, torch.is_grad_enabled(), dtype)  # a copy made under no_grad would give the weight no gradient
        if key not in self._copies:
            self._copies[key] = x.to(dtype)
        return self._copies[key]


def _widen(x: Tensor) -> Tensor:
    return x.float() if x.dtype.itemsize < 4 else x


def _is_mixed(values: Any) -> bool:
    return len({x.dtype for x in _floats(values)}) > 1


def _floats(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield value
        elif isinstance(value, tuple | list):
            yield from _floats(value)


class Autocast(Computation):
    """torch.autocast around the model's forward; overridden sites run outside of it, in their own format."""

    reenters = True

    def attach(self, model: nn.Module) -> None:
        """Find the model's device, and switch the dtype at overridden sites."""
        self._device = next((p.device.type for p in model.parameters()), "cpu")
        self._dtype = dtype_of(self.recipe.compute_format)
        for boundary in boundaries(model, self.recipe):
            self._override(boundary)

    def computing(self) -> AbstractContextManager[Any]:
        """Autocast, on the device the model was on when the recipe was applied."""
        return torch.autocast(self._device, dtype=self._dtype)

    def _override(self, boundary: Boundary) -> None:
        fmt = boundary.fmt
        dtype = dtype_of(fmt)
        if dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise RecipeError.explain(
                f"Recipe '{self.recipe.name}' cannot keep a site in '{fmt}'.",
                why="under autocast a site can be fp32, fp16 or bf16.",
                fix="for other formats use O1, O2, bf16 or fp32 with overrides; they are emulated.",
            )

        def around() -> AbstractContextManager[Any]:
            return torch.autocast(self._device, dtype=dtype, enabled=dtype != torch.float32)

        self.bracket(
            boundary.module,
            inputs=lambda values: cast_floats(values, fmt),
            around=around,
            outputs=lambda values: cast_floats(values, boundary.around),
        )


class NativeCast(Computation):
    """Stores weights and buffers narrow; at wide sites (norms, overrides) inputs are cast, and outputs cast back."""

    def attach(self, model: nn.Module) -> None:
        """Cast parameters and buffers, and the inputs and outputs of sites whose format differs."""
        for parameter, fmt in formats_of_parameters(model, self.recipe).items():
            if parameter.is_floating_point():  # through `.data`: the optimizer keeps holding the same parameter
                parameter.data = parameter.data.to(native_dtype(fmt))
        for module, fmt in formats_of_modules(model, self.recipe).items():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    module._buffers[name] = buffer.to(native_dtype(fmt))
        for boundary in [*boundaries(model, self.recipe), *norm_boundaries(model, self.recipe)]:
            self._bracket_site(boundary)

    def _bracket_site(self, boundary: Boundary) -> None:
        self.bracket(
            boundary.module,
            inputs=lambda values: cast_floats(values, boundary.fmt),
            outputs=lambda values: cast_floats(values, boundary.around),
        )
