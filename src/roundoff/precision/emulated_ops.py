"""The mode that rounds what functions of torch return, and lets the model's code believe in the narrow dtype."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from roundoff.formats import Format
from roundoff.precision.op_lists import EXACT, PRODUCTS, Function, opened
from roundoff.precision.rounding import GradientRounder, gradient_rounder, narrowed, round_in_place
from roundoff.precision.sites import dtype_of

_GET_DTYPE = Tensor.dtype.__get__  # type: ignore[attr-defined]
_NORMS = frozenset({F.batch_norm, F.layer_norm, F.group_norm, F.instance_norm, F.rms_norm})
_CASTS: dict[Function, torch.dtype | None] = {
    Tensor.to: None,
    Tensor.type: None,
    Tensor.type_as: None,
    Tensor.half: torch.float16,
    Tensor.bfloat16: torch.bfloat16,
    Tensor.float: torch.float32,
}


class Scope(threading.local):
    """The format that ops are rounded to at this moment, in this thread; None rounds nothing."""

    def __init__(self) -> None:
        self.fmt: Format | None = None
        self.dtype: torch.dtype | None = None
        self.round_gradient: GradientRounder | None = None

    def enter(self, fmt: Format | None) -> None:
        """Round to `fmt` from now on."""
        self.fmt = fmt
        self.dtype = None if fmt is None else dtype_of(fmt.name)
        self.round_gradient = None if fmt is None else gradient_rounder(fmt)


def mark_wide(result: Any) -> None:
    """Note that tensors hold fp32 on purpose: the model's code said `.float()`, or a wide site keeps them."""
    for item in result if isinstance(result, tuple | list) else (result,):
        if isinstance(item, Tensor):
            item._roundoff_wide = True  # type: ignore[attr-defined]


def is_wide(x: Any) -> bool:
    """Whether `x` is marked as wide."""
    return getattr(x, "_roundoff_wide", False)


class RoundResults(TorchFunctionMode):
    """Rounds what functions return in place, and the gradients that come back to it; storage stays fp32.

    A tensor's dtype reads as the emulated one, so that `x.to(y.dtype)` and `torch.finfo(x.dtype)` mean what they would
    natively. What `.float()` gives is wide: functions of it are not rounded, until a product.
    """

    def __init__(self, scope: Scope, *, norms_narrow: bool) -> None:
        super().__init__()
        self._scope = scope
        self._norms_narrow = norms_narrow

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and round what it gives."""
        scope = self._scope
        kwargs = kwargs or {}
        if scope.fmt is None:
            return func(*args, **kwargs)
        if func in EXACT:
            result = func(*args, **kwargs)
            if any(map(is_wide, args)):
                mark_wide(result)
            return self._stored_wide(result)
        if func == _GET_DTYPE:
            return self._believed_dtype(args[0])
        if inner := opened(func):
            with self:
                return inner(*args, **kwargs)
        if func in _CASTS:
            return self._cast(func, args, kwargs)
        return self._computed(func, args, kwargs)

    def _computed(self, func: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        wide = func not in PRODUCTS and (
            any(map(is_wide, args[:1] if func in _NORMS else args)) or kwargs.get("dtype") is torch.float32
        )
        result = self._stored_wide(func(*args, **kwargs))
        if wide:
            mark_wide(result)
            return result
        for item in result if isinstance(result, tuple | list) else (result,):
            if (
                type(item) is Tensor
                and item.dtype is torch.float32
                and (item.grad_fn is not None or not item.requires_grad)
            ):
                self._round(item)
        if func is F.batch_norm and self._norms_narrow:
            for statistics in args[1:3]:
                if isinstance(statistics, Tensor):
                    self._round(statistics)
        return result

    def _round(self, result: Tensor) -> None:
        scope = self._scope
        assert scope.fmt is not None
        round_in_place(result, scope.fmt)
        if result.requires_grad:
            result.register_hook(scope.round_gradient)

    def _stored_wide(self, result: Any) -> Any:
        """Return a result that came out in the emulated dtype, say of `torch.zeros(dtype=x.dtype)`, stored as fp32."""
        if type(result) is Tensor and result.dtype is self._scope.dtype:
            return result.float()
        return result

    def _believed_dtype(self, x: Tensor) -> torch.dtype:
        dtype = x.dtype
        if dtype is torch.float32 and not is_wide(x) and self._scope.dtype is not None:
            return self._scope.dtype
        return dtype

    def _cast(self, func: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do what a cast in the model's own code means: to the emulated dtype it rounds, to fp32 it widens."""
        scope, source = self._scope, args[0]
        assert scope.fmt is not None
        dtype = _CASTS[func] or self._asked_dtype((kwargs.get("dtype"), *args[1:]))
        if dtype is not None and dtype is scope.dtype:
            if source.dtype is torch.float32 and not is_wide(source):
                return source
            return narrowed(source.to(torch.float32), scope.fmt)
        result = func(*args, **kwargs)
        if dtype is torch.float32:
            result = result.view_as(result) if result is source else result
            mark_wide(result)
        return result

    def _asked_dtype(self, values: tuple[Any, ...]) -> torch.dtype | None:
        for value in values:
            if isinstance(value, torch.dtype):
                return value
            if isinstance(value, Tensor):
                return self._believed_dtype(value)
        return None
