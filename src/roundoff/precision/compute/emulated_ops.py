"""A mode that rounds the results of torch functions, and shows the narrow dtype to the model's code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from roundoff.formats import Format
from roundoff.precision.compute.computation import ForwardMode, OpenCalls, map_floats
from roundoff.precision.compute.graph_rounding import (
    GradientRounder,
    gradient_rounder,
    round_in_place,
    round_with_gradient,
)
from roundoff.precision.compute.torch_ops import EXACT, PRODUCTS, PROFILES, WIDE, Function, open_composite
from roundoff.precision.recipe.site_formats import dtype_of

_GET_DTYPE = Tensor.dtype.__get__  # type: ignore[attr-defined]
_NORMS = frozenset({F.batch_norm, F.layer_norm, F.group_norm, F.instance_norm, F.rms_norm})
CASTS: dict[Function, torch.dtype | None] = {
    Tensor.to: None,
    Tensor.type: None,
    Tensor.type_as: None,
    Tensor.half: torch.float16,
    Tensor.bfloat16: torch.bfloat16,
    Tensor.float: torch.float32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which functions are narrow. Whether a tensor is narrow or wide does not show in its values, so it is marked."""

    narrow: frozenset[Function]
    """Functions that take narrow operands and return narrow results."""
    wide: frozenset[Function] = frozenset()
    """Functions that always return wide results."""
    starts_wide: bool
    """Whether a tensor without a mark is wide."""
    spreads: bool = True
    """Whether other functions of narrow tensors return narrow results; if not, their results are wide."""


WHOLE: Final = Policy(narrow=PRODUCTS, starts_wide=False)
"""A cast model: everything is narrow, except what its code widens with `.float()`, up to the next product."""
LISTS: Final = Policy(narrow=PRODUCTS, wide=WIDE, starts_wide=True)
"""apex O1: products are narrow, sums and the like wide; everything else is as wide as its widest input."""


def profile_policy(name: str) -> Policy:
    """Return the policy of a device that computes some functions only in narrow formats."""
    return Policy(narrow=PROFILES[name], starts_wide=True, spreads=False)


class RoundingScope(threading.local):
    """The format to which ops are rounded in this thread, at this moment; None means no rounding."""

    def __init__(self) -> None:
        self.fmt: Format | None = None
        self.dtype: torch.dtype | None = None
        self.round_gradient: GradientRounder | None = None
        self.paused = False

    def _enter(self, fmt: Format | None) -> None:
        self.fmt = fmt
        self.dtype = None if fmt is None else dtype_of(fmt.name)
        self.round_gradient = None if fmt is None else gradient_rounder(fmt)

    @contextmanager
    def entering(self, fmt: Format | None) -> Iterator[None]:
        """Round to `fmt` inside the block."""
        before = self.fmt
        self._enter(fmt)
        try:
            yield
        finally:
            self._enter(before)

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Round nothing, and show the real dtypes, for our own code that runs between two sites."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before


def mark(values: Any, *, wide: bool) -> None:
    """Mark tensors as wide (they hold fp32 on purpose) or narrow."""
    for item in values if isinstance(values, tuple | list) else (values,):
        if isinstance(item, Tensor):
            item._roundoff_wide = wide  # type: ignore[attr-defined]


def copy_marks(source: Any, target: Any) -> None:
    """Copy the marks of the tensors in `source` to those at the same places in `target`."""
    for one, other in zip(_tensors_in(source), _tensors_in(target), strict=True):
        if one is not other and hasattr(one, "_roundoff_wide"):
            mark(other, wide=one._roundoff_wide)


def _floats_in(values: Any) -> Iterator[Tensor]:
    for x in values:
        if isinstance(x, Tensor):
            if x.is_floating_point():
                yield x
        elif isinstance(x, tuple | list):
            yield from _floats_in(x)


def _tensors_in(values: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    map_floats(values, note)
    return found


class RoundResults(ForwardMode):
    """Rounds the results of functions in place, and their gradients; storage stays fp32.

    The `dtype` of a narrow tensor reads as the emulated one, so that `x.to(y.dtype)` and `torch.finfo(x.dtype)` mean
    the same as on a device. There is one for each forward, which caches the rounded copies of wide weights.
    """

    def __init__(self, calls: OpenCalls, scope: RoundingScope, policy: Policy, *, norms_narrow: bool = False) -> None:
        super().__init__(calls)
        self._scope = scope
        self._policy = policy
        self._norms_narrow = norms_narrow
        self._weights: dict[tuple[Tensor, bool, str], Tensor] = {}

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and round its result."""
        scope, policy = self._scope, self._policy
        kwargs = kwargs or {}
        if scope.fmt is None or scope.paused or self._open_calls.has_ended():
            return func(*args, **kwargs)
        if inner := open_composite(func):
            with self:  # torch turns a mode off while it handles a call; the calls inside are rounded, too
                return inner(*args, **kwargs)
        if func in policy.narrow:
            return self._narrow(func, args, kwargs)
        if not policy.spreads:
            return func(*args, **kwargs)
        if func in EXACT:
            wide = self._is_result_wide(args, kwargs)
            result = self._stored_wide(func(*args, **kwargs))
            if wide != policy.starts_wide:
                self._mark(result, wide=wide)
            return result
        if func == _GET_DTYPE:
            return self._believed_dtype(args[0])
        if func in CASTS:
            return self._cast(func, args, kwargs)
        return self._other(func, args, kwargs)

    def _narrow(self, func: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        args, kwargs = map_floats((args, kwargs), self._narrow_operand)
        result = func(*args, **kwargs)
        self._round_all(result)
        if self._policy.starts_wide and self._policy.spreads:
            self._mark(result, wide=False)
        return result

    def _other(self, func: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        policy = self._policy
        wide = (
            func in policy.wide
            or kwargs.get("dtype") is torch.float32
            or self._is_result_wide(args[:1] if func in _NORMS else args, {} if func in _NORMS else kwargs)
        )
        result = self._stored_wide(func(*args, **kwargs))
        if not wide:
            self._round_all(result)
        if wide != policy.starts_wide:
            self._mark(result, wide=wide)
        if func is F.batch_norm and self._norms_narrow:
            self._round_all(args[1:3])
        return result

    def _is_wide(self, x: Tensor) -> bool:
        return getattr(x, "_roundoff_wide", self._policy.starts_wide)

    def _mark(self, values: Any, *, wide: bool) -> None:
        """Mark the results of a call; `RoundingPoints` only notes it."""
        mark(values, wide=wide)

    def _is_result_wide(self, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether torch's type promotion gives a wide result, if narrow tensors had the emulated dtype."""
        found = {True: 0, False: 0}
        for x in _floats_in((*args, *kwargs.values())):
            if x.dtype is torch.float32 or x.dtype is self._scope.dtype:
                wide = x.dtype is torch.float32 and self._is_wide(x)
                # A tensor without dimensions does not widen the others.
                found[wide] = max(found[wide], 2 if x.dim() else 1)
        if not self._policy.starts_wide:
            return found[True] == 2
        # A result of nothing narrow, such as `torch.full` or integers divided, has torch's default dtype.
        return found[True] >= found[False]

    def _narrow_operand(self, x: Tensor) -> Tensor:
        fmt = self._scope.fmt
        assert fmt is not None
        if x.dtype is self._scope.dtype:
            return x.float()  # given in the emulated dtype; products compute in fp32
        if x.dtype is not torch.float32 or not self._is_wide(x):
            return x
        if not x.is_leaf or not x.requires_grad:
            return round_with_gradient(x, fmt)
        key = (x, torch.is_grad_enabled(), fmt.name)  # a copy made under no_grad would give the weight no gradient
        if key not in self._weights:
            self._weights[key] = round_with_gradient(x, fmt)
        return self._weights[key]

    def _round_all(self, result: Any) -> None:
        for item in result if isinstance(result, tuple | list) else (result,):
            # A leaf that requires grad is a parameter that was passed through, not a result.
            if isinstance(item, Tensor) and item.dtype is torch.float32 and not (item.is_leaf and item.requires_grad):
                self._round(item)

    def _round(self, result: Tensor) -> None:
        """Round a result and its gradient; `RoundingPoints` only notes it."""
        assert self._scope.fmt is not None
        round_in_place(result, self._scope.fmt)
        if result.requires_grad:
            result.register_hook(self._scope.round_gradient)

    def _stored_wide(self, result: Any) -> Any:
        """Convert a result that has the emulated dtype, for example of `torch.zeros(dtype=x.dtype)`, to fp32."""
        if isinstance(result, Tensor) and result.dtype is self._scope.dtype:
            result = result.float()
            mark(result, wide=False)
        return result

    def _believed_dtype(self, x: Tensor) -> torch.dtype:
        narrow = self._scope.dtype
        if x.dtype is torch.float32 and narrow and not self._is_wide(x):
            return narrow
        return x.dtype

    def _cast(self, func: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Emulate a cast in the model's own code: to the emulated dtype it rounds, to fp32 it widens."""
        scope, source = self._scope, args[0]
        assert scope.fmt is not None
        dtype = CASTS[func] or self._first_dtype((kwargs.get("dtype"), *args[1:]))
        if dtype is None:
            result = func(*args, **kwargs)
            if hasattr(source, "_roundoff_wide"):
                mark(result, wide=source._roundoff_wide)
            return result
        if dtype is scope.dtype:
            if self._believed_dtype(source) is dtype:
                return source
            result = round_with_gradient(source.to(torch.float32), scope.fmt)
            mark(result, wide=False)
            return result
        result = func(*args, **kwargs)
        if dtype is torch.float32:
            # `.float()` of an fp32 tensor returns that tensor, and marking it would widen the source.
            result = result.view_as(result) if result is source else result
            mark(result, wide=True)
        return result

    def _first_dtype(self, values: tuple[Any, ...]) -> torch.dtype | None:
        for value in values:
            if isinstance(value, torch.dtype):
                return value
            if isinstance(value, Tensor):
                return self._believed_dtype(value)
        return None
