"""Blocks in which tensors, gradients, optimizers and modules hold other values; then they hold their own again."""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.kernels.host_copies import HostCopy
from roundoff.torch_private import foreach_copy_, local_tensor

_CONTAINERS = (list, dict, deque, set)


@contextlib.contextmanager
def swapped_data(live: list[Tensor], copies: dict[int, Tensor]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Give tensors other memory, with the values in `copies` (by id) or their own; yields them with their own data.

    The memory of a sharded tensor belongs to the code that shards it: its values are overwritten and later restored.
    """
    own = [(x, x.data if local_tensor(x) is None else local_part(x).clone()) for x in live]
    try:
        for x, data in own:
            if local_tensor(x) is None:
                x.data = copies.get(id(x), data).to(data.device, copy=True)
            else:
                local_part(x).copy_(copies.get(id(x), data))
        yield own
    finally:
        for x, data in own:
            if local_tensor(x) is None:
                x.data = data
            else:
                local_part(x).copy_(data)


def copy_all_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others of the same kinds: all at once as far as they are plain, wherever they are."""
    places: dict[tuple[Any, ...], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        if target.device != source.device:
            target.copy_(source, non_blocking=True)
        elif target.layout is torch.strided and not target.is_nested and not target.is_quantized:
            into, of = places.setdefault((target.device, target.dtype), ([], []))
            into.append(target)
            of.append(source)
        else:
            target.copy_(source)
    for into, of in places.values():
        foreach_copy_(into, of)


def local_part(x: Tensor) -> Tensor:
    """Return a tensor without its graph; of a sharded one, the part that this rank holds."""
    local = local_tensor(x)
    return (x if local is None else local).detach()


@contextlib.contextmanager
def swapped_flags(live: list[Tensor], flags: dict[int, bool]) -> Iterator[None]:
    """Set `requires_grad` of leaves from `flags` (by id)."""
    own = [(x, x.requires_grad) for x in live if x.is_leaf]
    try:
        for x, _ in own:
            x.requires_grad_(flags.get(id(x), x.requires_grad))
        yield
    finally:
        for x, flag in own:
            x.requires_grad_(flag)


@contextlib.contextmanager
def swapped_gradients(live: list[Tensor], copies: dict[int, Tensor | None]) -> Iterator[None]:
    """Give leaves the gradients in `copies` (by id), or none."""
    own = [(x, x.grad) for x in live if x.is_leaf]
    try:
        for x, _ in own:
            kept = copies.get(id(x))
            x.grad = None if kept is None else kept.to(x.device, copy=True)
        yield
    finally:
        for x, grad in own:
            x.grad = grad


@contextlib.contextmanager
def swapped_optimizer(optimizer: Optimizer, states: dict[Any, Any]) -> Iterator[dict[Any, Any]]:
    """Give an optimizer another state; yields its own."""
    own = dict(optimizer.state)
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    try:
        optimizer.state.clear()
        for parameter, state in states.items():
            optimizer.state[parameter] = copy_value(state)
        yield own
    finally:
        optimizer.state.clear()
        optimizer.state.update(own)
        for group, values in zip(optimizer.param_groups, settings, strict=True):
            group.update(values)


@contextlib.contextmanager
def swapped_attributes(owner: Any, attributes: dict[str, Any] | None) -> Iterator[None]:
    """Give an object other plain attributes, if there are any; those that were None when copied stay as they are."""
    own = dict(vars(owner))
    containers = {key: copy.copy(value) for key, value in own.items() if isinstance(value, _CONTAINERS)}
    try:
        if attributes is not None:
            vars(owner).update({key: copy_value(value) for key, value in attributes.items() if value is not None})
        yield
    finally:
        vars(owner).clear()
        vars(owner).update(own)
        _refill(own, containers)


def copy_value(value: Any) -> Any:
    """Copy tensors and plain containers, at any depth; other objects are shared. Staged tensors come back."""
    if isinstance(value, HostCopy):
        return value.on_device()
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple, deque, set):
        return type(value)(copy_value(item) for item in value)
    if type(value) is dict:
        return {key: copy_value(item) for key, item in value.items()}
    if type(value) is defaultdict:  # a GradScaler keeps one: whether each optimizer has stepped since the last update
        return defaultdict(value.default_factory, {key: copy_value(item) for key, item in value.items()})
    return value


def is_plain(value: Any) -> bool:
    """Return whether an attribute is plain data, not machinery such as hooks, models and callbacks."""
    if isinstance(value, (type(None), bool, int, float, str, Enum, Tensor)):
        return not isinstance(value, nn.Parameter)
    if isinstance(value, (list, tuple, deque, set)):
        return all(is_plain(item) for item in value)
    return isinstance(value, dict) and all(is_plain(item) for item in value.values())


def _refill(values: dict[str, Any], copies: dict[str, Any]) -> None:
    """Restore in place what containers held before."""
    for key, before in copies.items():
        value = values[key]
        if isinstance(value, list):
            value[:] = before
        else:
            value.clear()
            (value.extend if isinstance(value, deque) else value.update)(before)
