"""Remembers which tensors a module has dealt with already, so that the module around it lets them pass."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from roundoff.precision.fixed.setting import TensorSetting

Dealt = tuple[TensorSetting, TensorSetting]
"""The settings of a tensor and of its gradient."""


class Marks:
    """Settings by tensor, for as long as the tensor lives. Nothing is written on the tensor: it may be saved.

    Copies and pickles begin empty.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Tensor], int, Dealt]] = {}

    def put(self, x: Tensor, dealt: Dealt) -> None:
        """Note that `x` has been dealt with."""
        key = id(x)

        def forget(ref: weakref.ref[Tensor]) -> None:
            if key in self._found and self._found[key][0] is ref:
                del self._found[key]

        self._found[key] = (weakref.ref(x, forget), _version(x), dealt)

    def get(self, x: Tensor) -> Dealt | None:
        """Return how this very tensor was dealt with; None if it was not, or has been written into since."""
        ref, version, dealt = self._found.get(id(x), (None, 0, None))
        return dealt if ref is not None and ref() is x and version == _version(x) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Marks, ()


def _version(x: Tensor) -> int:
    """Return what changes when somebody writes into `x`; inference tensors do not count that."""
    return -1 if x.is_inference() else x._version
