"""Finds what models hold without owning it: tensors and layers in plain attributes, which `parameters()` leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from roundoff.record.sites import named_places

_OWN = ("_parameters", "_buffers", "_modules")
_DEEPEST = 3
_MOST_ITEMS = 1000


def held_by_attributes(models: Iterable[nn.Module]) -> dict[int, str]:
    """Return where each tensor is that some module holds in a plain attribute, a list or a dict, by identity.

    >>> model = nn.Identity()
    >>> model.layers = [nn.Linear(2, 2)]
    >>> list(held_by_attributes([model]).values())
    ['layers[0].weight', 'layers[0].bias']
    """
    found: dict[int, str] = {}
    for model in models:
        owned = set(map(id, model.parameters())) | set(map(id, model.buffers()))
        for path, module in named_places(model):
            for name, value in vars(module).items():
                if name not in _OWN:
                    for place, x in _tensors_in(value, f"{path}.{name}" if path else name, _DEEPEST):
                        if id(x) not in owned:
                            found.setdefault(id(x), place)
    return found


def _tensors_in(value: Any, place: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    # type(), not isinstance: lazy proxies among the values must not be woken up
    if issubclass(type(value), Tensor):
        yield place, value
    elif issubclass(type(value), nn.Module):
        yield from ((f"{place}.{name}", x) for name, x in value.named_parameters())
    elif depth and issubclass(type(value), (list, tuple)) and len(value) <= _MOST_ITEMS:
        for index, item in enumerate(value):
            yield from _tensors_in(item, f"{place}[{index}]", depth - 1)
    elif depth and issubclass(type(value), dict) and len(value) <= _MOST_ITEMS:
        for key, item in value.items():
            yield from _tensors_in(item, f"{place}[{key!r}]", depth - 1)
