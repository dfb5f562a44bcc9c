"""Names for the torch functions that a loop may call: a closed table, since names may come from untrusted files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import overrides

from roundoff.torch_private import weight_norm_function

_MAKERS = (
    "arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "linspace", "logspace", "multinomial",
    "normal", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
    "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
)  # fmt: skip
"""Functions that create tensors, which torch does not list among those that can be overridden."""


_ATTRIBUTES = frozenset({"H", "T", "data", "grad", "imag", "mH", "mT", "real"})
_BINARY = (
    "add", "and", "div", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift", "sub", "truediv", "xor"
)  # fmt: skip
_OPERATORS = frozenset(
    {f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in _BINARY}
    | {f"__{name}__" for name in ["eq", "ge", "getitem", "gt", "invert", "le", "lt", "ne", "reversed", "setitem"]}
)
_OTHER_WORK = frozenset({
    "apply_", "backward", "const_data_ptr", "data_ptr", "from_file", "is_pinned", "is_shared", "map2_", "map_",
    "module_load", "numpy", "pin_memory", "register_hook", "register_post_accumulate_grad_hook", "resize", "resize_",
    "resize_as", "resize_as_", "resize_as_sparse_", "set_", "share_memory_", "sparse_resize_",
    "sparse_resize_and_clear_", "storage", "storage_type", "tolist", "untyped_storage",
})  # fmt: skip
"""Functions that call what they are given, or get at memory or other processes: no step is made of them."""


def _computes(name: str) -> bool:
    """Return whether a function only computes tensors from tensors; of special methods, only operators do."""
    *_, owner, last = name.split(".")
    if last == "__get__":
        return owner in _ATTRIBUTES
    return last in _OPERATORS or not (last.startswith("__") or last in _OTHER_WORK)


def name_of_function(function: Callable[..., Any]) -> str | None:
    """Return the name under which `function_named` finds a function; None if it does not.

    >>> name_of_function(torch.nn.functional.cross_entropy)
    'torch.nn.functional.cross_entropy'
    """
    return _names().get(function)


def function_named(name: str) -> Callable[..., Any] | None:
    """Return the torch function with that name; None if there is none that computes a tensor of a step.

    The name may come from an untrusted file: no other function can be reached through it.
    """
    return _functions().get(name)


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    found = {f"torch.{name}": getattr(torch, name) for name in _MAKERS}
    for functions in overrides.get_overridable_functions().values():
        for function in functions:
            name = overrides.resolve_name(function)
            if name is not None and _computes(name):
                found[name] = function
    found["torch.autograd.grad"] = torch.autograd.grad
    if (weight_norm := weight_norm_function()) is not None:
        found["torch._weight_norm"] = weight_norm
    for name in ("grad", "data"):
        found[f"torch.Tensor.{name}.__set__"] = getattr(torch.Tensor, name).__set__
    return found


@functools.cache
def _names() -> dict[Callable[..., Any], str]:
    return {function: name for name, function in _functions().items()}
