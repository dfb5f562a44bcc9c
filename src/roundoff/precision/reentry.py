"""Enters a way of computing again where a part of the model is called by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn


class Inside(threading.local):
    """Whether this thread is inside a model's forward, and which module entered by itself."""

    def __init__(self) -> None:
        self.depth = 0
        self.owner: nn.Module | None = None
        self.num_calls = 0
        """Of the owner, inside itself."""
        self.context: AbstractContextManager[Any] | None = None


class Reentry:
    """Two hooks for every module; inside the model's forward they only look and leave."""

    def __init__(self, inside: Inside, computing: Callable[[], AbstractContextManager[Any]]) -> None:
        self._inside = inside
        self._computing = computing

    def before(self, module: nn.Module, args: Any) -> None:
        """Enter, unless the thread is inside already."""
        inside = self._inside
        if inside.depth:
            inside.num_calls += inside.owner is module
            return
        context = self._computing()
        context.__enter__()
        inside.depth, inside.owner, inside.num_calls, inside.context = 1, module, 1, context

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """Leave, if this module entered."""
        inside = self._inside
        if inside.owner is not module:
            return
        inside.num_calls -= 1
        if inside.num_calls == 0 and inside.context is not None:
            context = inside.context
            inside.depth, inside.owner, inside.context = 0, None, None
            context.__exit__(None, None, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Reentry:
        # A copied model computes in the same way, in the same threads.
        return self
