"""A call under way: what it is given, and what the mode that rounds would do to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from roundoff.precision.op_lists import Function
from roundoff.record.torch_private import has_no_memory
from roundoff.sensitivity.narrow_call import memory_of

_PLAIN = (Tensor, nn.Parameter)
_WRITING = frozenset(f"__{name}__" for name in ("iadd", "isub", "imul", "itruediv", "ipow", "imatmul", "setitem"))
"""Operators that write into their first operand."""


class RunningCall:
    """A call under way: what it is given, and what the mode that rounds would do to it."""

    def __init__(self, site: str, op: str, arguments: list[Tensor], *, writes: bool) -> None:
        self.site = site
        self.op = op
        self.arguments = arguments
        self.written = arguments[0] if writes and arguments else None
        self.is_product = False
        self.rounded: list[Tensor] = []
        self.wide: list[Tensor] = []
        self._versions = [x._version for x in arguments]

    def hands_on(self, result: Tensor) -> bool:
        """Say whether a result is an argument as it was."""
        pairs = zip(self.arguments, self._versions, strict=True)
        return any(x is result and x._version == version for x, version in pairs)

    def views(self, result: Tensor) -> bool:
        """Say whether a result shows what an argument holds."""
        memory = memory_of(result)
        return result is not self.written and any(memory_of(x) == memory for x in self.arguments)

    def rounds(self, result: Tensor) -> bool:
        """Say whether a result is new and would be rounded."""
        return is_among(result, self.rounded) and not self.views(result)


def writes(func: Function, kwargs: dict[str, Any]) -> bool:
    """Say whether a function writes into its first argument."""
    name = getattr(func, "__name__", "")
    if name in ("requires_grad_", "share_memory_"):
        return False
    return bool(kwargs.get("inplace")) or name in _WRITING or (name.endswith("_") and not name.endswith("__"))


def known_kinds(tensors: Iterable[Tensor]) -> Iterable[Tensor]:
    """Give the tensors whose memory can be read as it is."""
    return (x for x in tensors if type(x) in _PLAIN and not has_no_memory(x))


def is_among(x: Tensor, tensors: Iterable[Tensor]) -> bool:
    """Say whether a tensor itself is one of these: comparing them would compare their numbers."""
    return any(x is each for each in tensors)
