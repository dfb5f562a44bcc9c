"""The mode that rounds what functions return, where single ops of a site have a format of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from roundoff.formats import Format, format_named
from roundoff.precision.computation import map_floats
from roundoff.precision.emulated_ops import CASTS, Policy, RoundResults, Scope
from roundoff.precision.op_lists import Function, opened
from roundoff.precision.op_overrides import OpOverrides
from roundoff.precision.rounding import narrowed

_BY_OP = "_roundoff_wide_by_op"


class RoundChosenOps(RoundResults):
    """`RoundResults` that asks about every call whether its op is overridden.

    An op in fp32 takes what there is and gives a wide result, as if the model's code had called `.float()` on its
    operands; what follows in the site's own code is then wide as well, until a product. An op in a narrow format takes
    rounded operands, its result is rounded, and goes on in the format of the site.
    """

    def __init__(self, scope: Scope, policy: Policy, ops: OpOverrides, *, norms_narrow: bool = False) -> None:
        super().__init__(scope, policy, norms_narrow=norms_narrow)
        self._ops = ops

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and round what it gives as its override, or else its site, says."""
        kwargs = kwargs or {}
        if self._scope.paused or func in CASTS or getattr(func, "__name__", "") == "__get__":
            return super().__torch_function__(func, types, args, kwargs)
        if inner := opened(func):
            with self:
                return inner(*args, **kwargs)
        fmt = self._ops.format_of(func)
        if fmt is None:
            result = super().__torch_function__(func, types, args, kwargs)
            if _any_by_op(args):
                self._note_by_op(result)
            return result
        if fmt == "fp32":
            return self._widely(func, args, kwargs)
        return self._narrowly(func, args, kwargs, format_named(fmt))

    def _widely(self, func: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if self._scope.fmt is not None:
            result = self._stored_wide(result)
            self._mark(result, wide=True)
            self._note_by_op(result)
        return result

    def _narrowly(self, func: Function, args: Any, kwargs: dict[str, Any], fmt: Format) -> Any:
        scope = self._scope
        around = scope.fmt
        # What an op writes into stays the tensor that it is.
        written = [args[0]] if args and _writes(func) else []
        written += [kwargs["out"]] if "out" in kwargs else []

        def narrow(x: Tensor) -> Tensor:
            is_read = x.dtype is torch.float32 and not any(x is each for each in written)
            return narrowed(x, fmt) if is_read else x

        args, kwargs = map_floats((args, kwargs), narrow)
        result = func(*args, **kwargs)
        try:
            scope.enter(fmt)
            self._round_all(result)
        finally:
            scope.enter(around)
        if around is not None:
            self._round_all(result)
            self._mark(result, wide=False)
        return result

    def _note_by_op(self, result: Any) -> None:
        if self._policy.starts_wide:
            return  # wide results flow from site to site there anyway
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, Tensor) and self._is_wide(item):
                setattr(item, _BY_OP, True)


def narrow_again(scope: Scope, values: Any) -> Any:
    """Return what a site hands on, or is handed: wide tensors that are only there because of an op are narrow again."""
    fmt = scope.fmt
    if fmt is None:
        return values
    with scope.pausing():
        return map_floats(values, lambda x: narrowed(x, fmt) if hasattr(x, _BY_OP) else x)


def _any_by_op(args: Any) -> bool:
    return any(hasattr(x, _BY_OP) or (isinstance(x, tuple | list) and _any_by_op(x)) for x in args)


def _writes(func: Function) -> bool:
    name = getattr(func, "__name__", "").partition(".")[0]
    return name.startswith("__i") or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
