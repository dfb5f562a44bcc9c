"""One name for one op: what recipes, tables and searches call a function of torch, however it was called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.overrides import get_overridable_functions

_REFLECTED: Final = {
    f"{letter}{name}": name
    for letter in "ri"
    for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "matmul")
}
"""`1 - x` and `x -= 1` are other methods of a tensor than `x - 1`, and the same op."""
_SYNONYMS: Final = {
    "truediv": "div",
    "divide": "div",
    "true_divide": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "subtract": "sub",
    "multiply": "mul",
    "negative": "neg",
    "absolute": "abs",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
}


@functools.cache
def op_name(function: Callable[..., Any]) -> str:
    """Return the name of a function of torch: the same for the function, the method, the operator and the in-place one.

    >>> op_name(torch.softmax), op_name(torch.Tensor.softmax), op_name(torch.nn.functional.softmax)
    ('softmax', 'softmax', 'softmax')
    >>> op_name(torch.Tensor.__radd__), op_name(torch.Tensor.add_), op_name(torch.Tensor.__matmul__)
    ('add', 'add', 'matmul')

    An attribute that is computed has its own name (`T`), an op of a library the name it has there.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":
        attribute: Any = function.__self__  # type: ignore[attr-defined]
        return str(getattr(attribute, "fget", attribute).__name__)
    return canonical_name(name.partition(".")[0])


def canonical_name(name: str) -> str:
    """Return what `op_name` calls the function that somebody wrote as `__add__`, `add_` or `special_softmax`.

    >>> canonical_name("__rtruediv__")
    'div'
    """
    is_operator = name.startswith("__") and name.endswith("__")
    plain = name.strip("_") if is_operator else name.removeprefix("special_").rstrip("_")
    if is_operator:
        plain = _REFLECTED.get(plain, plain)
    return _SYNONYMS.get(plain, plain) or name


@functools.cache
def known_op_names() -> frozenset[str]:
    """Return the names of all functions of torch that a mode can see."""
    functions = (function for several in get_overridable_functions().values() for function in several)
    return frozenset(op_name(function) for function in functions)


def is_op_name(name: str) -> bool:
    """Whether torch, or a library of ops that was loaded into it, has a function of this name."""
    return name in known_op_names() or any(name in dir(getattr(torch.ops, library)) for library in torch.ops)
