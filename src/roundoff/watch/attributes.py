"""The attributes of modules that change from step to step and are no buffers: a hidden state, a counter, a queue."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from roundoff.watch.lending import copied_value
from roundoff.watch.surroundings import own_attributes

_MOST_BYTES = 64 * 2**20
"""Larger tensors are taken for data, which does not change."""
_MANY = 10_000


class Attributes:
    """A copy of the plain attributes of modules at one moment."""

    def __init__(self, modules: Iterable[nn.Module], *, is_state: Callable[[Tensor], bool]) -> None:
        self._kept = [(module, dict(_plain_attributes(module, is_state)), _names(module)) for module in modules]

    @contextlib.contextmanager
    def lent(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Give the modules these attributes inside the block; `modules` may have come since: they keep theirs."""
        known = {id(module): module for module, _, _ in self._kept} | {id(module): module for module in modules}
        own = [(module, dict(vars(module))) for module in known.values()]
        try:
            for module, kept, names in self._kept:
                for name in _names(module) - names:
                    del vars(module)[name]
                vars(module).update({name: copied_value(value) for name, value in kept.items()})
            yield
        finally:
            for module, values in own:
                vars(module).clear()
                vars(module).update(values)


def _names(module: nn.Module) -> frozenset[str]:
    return frozenset(own_attributes(module))


def _plain_attributes(module: nn.Module, is_state: Callable[[Tensor], bool]) -> Iterator[tuple[str, Any]]:
    for name, value in own_attributes(module).items():
        if _is_kept(value, is_state):
            yield name, copied_value(value)


def _is_kept(value: Any, is_state: Callable[[Tensor], bool]) -> bool:
    """Say whether an attribute is a value of its own: not a part of the machinery, and no other name of a weight."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return True
    if isinstance(value, Tensor):
        is_weight = isinstance(value, nn.Parameter) or is_state(value)
        return not is_weight and value.numel() * value.element_size() <= _MOST_BYTES
    if isinstance(value, (list, tuple, deque, set)):
        return len(value) <= _MANY and all(_is_kept(item, is_state) for item in value)
    if isinstance(value, dict):
        return len(value) <= _MANY and all(_is_kept(item, is_state) for item in value.values())
    return False
