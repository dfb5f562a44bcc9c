"""A census of the process: its containers, its tensors and the graphs they hang on, to be compared with a later one."""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundoff.record.torch_private import hidden_from_modes

_LEAST_LENGTH = 16
_MOST_NODES = 20_000
_CONTAINERS = (list, dict, deque, set)
_TENSORS = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Census:
    """What there was at one moment; containers by identity, which says nothing once they are gone."""

    lengths: dict[int, int]
    num_tensors: Counter[str]
    tensor_bytes: Counter[str]
    graph_sizes: dict[str, int]
    """Nodes behind each variable that hangs on a graph."""


def take_census(
    variables: Mapping[str, Any], *, before: Census | None = None, least: int = 2
) -> tuple[Census, list[tuple[Any, int]]]:
    """Count containers, tensors and graphs; some 0.2 s, so only where there is reason to.

    Returns the census, and the containers that have at least `least` entries more than before, with how many more.

    Args:
        variables: what the training's own code can name, by name.
        before: an earlier census.
        least: so many more entries count as growth.
    """
    lengths: dict[int, int] = {}
    grown: list[tuple[Any, int]] = []
    num_tensors: Counter[str] = Counter()
    tensor_bytes: Counter[str] = Counter()
    earlier = {} if before is None else before.lengths
    with hidden_from_modes():
        for thing in gc.get_objects():
            kind = type(thing)
            if kind in _CONTAINERS:
                length = len(thing)
                if length >= _LEAST_LENGTH and thing is not earlier:
                    lengths[id(thing)] = length
                    if before is not None and length - earlier.get(id(thing), 0) >= least:
                        grown.append((thing, length - earlier.get(id(thing), 0)))
            elif kind in _TENSORS:
                name = describe(thing)
                num_tensors[name] += 1
                tensor_bytes[name] += bytes_of(thing)
        graphs = {name: graph_size(value) for name, value in variables.items() if has_graph(value, depth=0)}
    return Census(lengths, num_tensors, tensor_bytes, graphs), grown


def last_entry(container: Any) -> Any:
    """Return what was put in last, as far as the container remembers."""
    if isinstance(container, dict):
        return next(reversed(container.values()), None)
    return next(iter(container), None) if isinstance(container, set) else container[-1]


def has_graph(value: Any, *, depth: int = 2) -> bool:
    """Say whether a tensor hangs on a graph, or one that a list, tuple or dictionary holds."""
    if type(value) in _TENSORS:
        return value.grad_fn is not None
    if depth and isinstance(value, (list, tuple)):
        return any(has_graph(item, depth=depth - 1) for item in value[:8])
    if depth and isinstance(value, dict):
        return any(has_graph(item, depth=depth - 1) for item in list(value.values())[:8])
    return False


def graph_size(x: Tensor) -> int:
    """Count the nodes of the graph behind a tensor, up to a limit."""
    seen: set[Any] = set()
    waiting: list[Any] = [x.grad_fn]
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return len(seen)


def bytes_of(value: Any, *, depth: int = 2) -> int:
    """Estimate what a value holds: tensors, arrays, bytes and text exactly, containers by their first entries."""
    if type(value) in _TENSORS:
        return int(value.numel() * value.element_size())
    if isinstance(value, np.ndarray):
        return value.nbytes
    if depth and isinstance(value, (list, tuple, dict)) and value:
        entries = list(value.values() if isinstance(value, dict) else value[:8])[:8]
        return sum(bytes_of(entry, depth=depth - 1) for entry in entries) * len(value) // len(entries)
    return sys.getsizeof(value)


def describe(value: Any, *, depth: int = 1) -> str:
    """Say what a value is, in words that group its kind: `float32 64x10 tensor`, `tuple with float32 64x10 tensor`."""
    if type(value) in _TENSORS:
        return f"{str(value.dtype).removeprefix('torch.')} {_shape(value)} tensor"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {_shape(value)} array"
    if depth and isinstance(value, (list, tuple, dict)) and value:
        entries = list(value.values()) if isinstance(value, dict) else list(value[:8])
        return f"{type(value).__name__} with {describe(max(entries, key=bytes_of), depth=depth - 1)}"
    return type(value).__name__


def _shape(value: Any) -> str:
    return "x".join(map(str, value.shape)) or "scalar"
