"""The mode that makes fp32 of everything that a function of torch would make, or take, in fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from roundoff.precision.computation import map_floats
from roundoff.record.torch_private import FunctionMode, never_compiled

NARROW: Final = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    }
)
_CASTS: Final = frozenset({Tensor.half, Tensor.bfloat16})


class Widen(FunctionMode):
    """Replaces narrow dtypes among the arguments by fp32, and narrow tensors by their wide copies.

    So `model.half()`, `x.to(torch.bfloat16)` and `torch.zeros(4, dtype=torch.half)` give fp32, and a tensor that came
    narrow from elsewhere is widened where it is used. A function that writes into its operand writes into it, whatever
    its dtype.
    """

    @never_compiled
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function with what is wide."""
        kwargs = kwargs or {}
        if func in _CASTS:
            return args[0].float()
        if func is Tensor.view or _only_looks(func):
            return func(*args, **kwargs)
        args = tuple(map(_wide_dtype, args))
        kwargs = {name: _wide_dtype(value) for name, value in kwargs.items()}
        if not _writes(func, kwargs):
            args, kwargs = map_floats((args, kwargs), _wide)
        return func(*args, **kwargs)


def _wide_dtype(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in NARROW else value


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in NARROW else x


def _only_looks(func: Callable[..., Any]) -> bool:
    """Whether it reads or writes an attribute: what a narrow tensor says of itself is true."""
    return getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__", "is_floating_point", "element_size")


def _writes(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    return "out" in kwargs or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
