"""Names for the torch functions that a loop may call: a closed table, since names may come from untrusted files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import overrides

from roundoff.record.torch_private import weight_norm_function

_MAKERS = (
    "arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "linspace", "logspace", "multinomial",
    "normal", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
    "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
)  # fmt: skip
"""Functions that create tensors, which torch does not list among those that can be overridden."""


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
            if name is not None:
                found[name] = function
    found["torch.autograd.grad"] = torch.autograd.grad
    found["torch._weight_norm"] = weight_norm_function()
    for name in ("grad", "data"):
        found[f"torch.Tensor.{name}.__set__"] = getattr(torch.Tensor, name).__set__
    return found


@functools.cache
def _names() -> dict[Callable[..., Any], str]:
    return {function: name for name, function in _functions().items()}
