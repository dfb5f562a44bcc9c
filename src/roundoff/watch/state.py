"""The state of a training: everything that a step changes and the next one starts from."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.torch_private import hidden_from_modes, preserved_versions
from roundoff.watch.generators import Generators

_CONTAINERS = (list, dict, deque, set)
_MANY = 10_000
"""Longer containers of a module are not copied for a replay."""


class Training:
    """Knows the models, optimizers and scalers of a training, as they are met."""

    def __init__(self) -> None:
        self.models: WeakSet[nn.Module] = WeakSet()
        self.optimizers: WeakSet[Optimizer] = WeakSet()
        self.helpers: WeakSet[Any] = WeakSet()
        """Objects with state of their own: scalers, and what a recipe remembers."""
        self._known: dict[int, Tensor] = {}

    def add_model(self, model: nn.Module) -> bool:
        """Take in a model; say whether it is new."""
        if model in self.models:
            return False
        self.models.add(model)
        self.refresh()
        return True

    def add_optimizer(self, optimizer: Optimizer) -> bool:
        """Take in an optimizer; say whether it is new."""
        if optimizer in self.optimizers:
            return False
        self.optimizers.add(optimizer)
        for helper in helpers_of(optimizer):
            self.helpers.add(helper)
        self.refresh()
        return True

    def find_optimizers(self) -> None:
        """Look for optimizers that have not stepped yet."""
        # type(), not isinstance: lazy proxies among the objects must not be woken up
        for found in gc.get_objects():
            if issubclass(type(found), Optimizer) and hasattr(found, "param_groups"):
                self.add_optimizer(found)

    def refresh(self) -> None:
        """Learn which tensors are state: layers may have been replaced, state made."""
        self._known = {id(x): x for x in self.tensors()}

    def is_state(self, x: Tensor) -> bool:
        """Say whether a tensor is a parameter or buffer of a known model, or an optimizer's."""
        return self._known.get(id(x)) is x

    def tensors(self) -> list[Tensor]:
        """Return every parameter and buffer, once, in a fixed order."""
        found: dict[int, Tensor] = {}
        for model in self.models:
            for x in (*model.parameters(), *model.buffers()):
                found.setdefault(id(x), x)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for x in group["params"]:
                    found.setdefault(id(x), x)
        return [x for x in found.values() if not nn.parameter.is_lazy(x)]

    def buffers(self) -> list[tuple[str, Tensor]]:
        """Return the buffers that hold floats, with their names."""
        found = [entry for model in self.models for entry in model.named_buffers()]
        return [(name, x) for name, x in found if x.is_floating_point() and x.numel()]

    def modules(self) -> Iterator[nn.Module]:
        """Give every module, once."""
        seen: set[int] = set()
        for model in self.models:
            for module in model.modules():
                if id(module) not in seen:
                    seen.add(id(module))
                    yield module


class Own:
    """What a training had while it was lent another state."""

    def __init__(self, data: list[tuple[Tensor, Tensor]]) -> None:
        self._data = data
        self.states: list[tuple[Optimizer, dict[Any, dict[str, Any]]]] = []

    def first_difference(self) -> str | None:
        """Say what is not, bit for bit, as the training has it itself: a weight, a buffer, optimizer state."""
        for x, data in self._data:
            if not same_bits(x, data):
                return "a weight" if isinstance(x, nn.Parameter) else "a buffer"
        for optimizer, own in self.states:
            for parameter, state in own.items():
                for key, value in state.items():
                    lent = optimizer.state.get(parameter, {}).get(key)
                    if isinstance(value, Tensor) and not (isinstance(lent, Tensor) and same_bits(value, lent)):
                        return f"the optimizer's {key}"
        return None


class State:
    """A copy of the state of a training at one moment; it can be taken again into the same memory."""

    def __init__(self) -> None:
        self.generators: Generators | None = None
        self.tensors: list[tuple[Tensor, Tensor]] = []
        """(live, copy) of parameters and buffers."""
        self.gradients: list[tuple[Tensor, Tensor | None]] = []
        """(parameter, copy of its gradient); filled in when it turns out that the step starts from them."""
        self.has_gradients = False
        self._optimizers: list[tuple[Optimizer, dict[Any, dict[str, Any]]]] = []
        self._helpers: list[tuple[Any, dict[str, Any]]] = []
        self._is_training: list[tuple[nn.Module, bool]] = []
        self._ids: set[int] = set()

    @property
    def num_bytes(self) -> int:
        """How much memory the copies take."""
        copies = [kept for _, kept in self.tensors] + [kept for _, kept in self.gradients if kept is not None]
        for _, states in self._optimizers:
            copies += [value for state in states.values() for value in state.values() if isinstance(value, Tensor)]
        return sum(kept.numel() * kept.element_size() for kept in copies)

    def take(self, training: Training) -> None:
        """Copy everything, into the memory of the last time where it fits."""
        with hidden_from_modes(), torch.no_grad():
            self.generators = Generators.now()
            self._take_tensors(training.tensors())
            self.gradients, self.has_gradients = [], False
            before = {id(optimizer): states for optimizer, states in self._optimizers}
            self._optimizers = [
                (optimizer, _copied_states(optimizer.state, before.get(id(optimizer), {})))
                for optimizer in outermost(training.optimizers)
            ]
            self._helpers = [(helper, _attributes(helper)) for helper in training.helpers]
            self._is_training = [(module, module.training) for module in training.modules()]

    def join(self, training: Training, tensors: Iterable[Tensor]) -> None:
        """Add tensors that were met after the state was taken and that nobody has changed since."""
        with hidden_from_modes(), torch.no_grad():
            new = [x for x in tensors if id(x) not in self._ids]
            self.tensors += [(x, x.detach().clone()) for x in new]
            self._ids.update(map(id, new))
            known = {id(module) for module, _ in self._is_training}
            self._is_training += [(m, m.training) for m in training.modules() if id(m) not in known]

    def take_gradients(self) -> None:
        """Copy the gradients: the step adds to them."""
        if self.has_gradients:
            return
        self.has_gradients = True
        with hidden_from_modes(), torch.no_grad():
            self.gradients = [
                (live, None if live.grad is None else live.grad.detach().clone())
                for live, _ in self.tensors
                if live.requires_grad
            ]

    def install(self, training: Training) -> None:
        """Put the training into this state for good, generators and modes of modules excepted."""
        with hidden_from_modes(), torch.no_grad():
            for live, kept in self.tensors:
                live.detach().copy_(kept)
            for live, gradient in self.gradients:
                live.grad = None if gradient is None else gradient.clone()
            for optimizer, states in self._optimizers:
                optimizer.state.clear()
                for parameter, state in states.items():
                    optimizer.state[parameter] = {key: copied_value(value) for key, value in state.items()}
            for helper, attributes in self._helpers:
                vars(helper).update({key: copied_value(value) for key, value in attributes.items()})

    @contextlib.contextmanager
    def lent(self, training: Training) -> Iterator[Own]:
        """Let the training be in this state inside the block; afterwards it is as it was, to the bit.

        Nothing is copied over the live memory: models and optimizers get other memory for the time of the block, so
        that graphs and views the user holds stay valid whatever happens inside.
        """
        with contextlib.ExitStack() as stack, hidden_from_modes():
            current = Generators.now()
            stack.callback(current.restore)
            live = training.tensors()
            stack.enter_context(preserved_versions(live))
            stack.enter_context(_lent_modules(list(training.modules())))
            own = Own(stack.enter_context(_lent_data(live, {id(x): kept for x, kept in self.tensors})))
            stack.enter_context(_lent_gradients(live, {id(x): kept for x, kept in self.gradients}))
            kept = {id(optimizer): states for optimizer, states in self._optimizers}
            for optimizer in outermost(training.optimizers):
                states = stack.enter_context(_lent_optimizer(optimizer, kept.get(id(optimizer), {})))
                own.states.append((optimizer, states))
            attributes = {id(helper): values for helper, values in self._helpers}
            for helper in training.helpers:
                stack.enter_context(_lent_helper(helper, attributes.get(id(helper))))
            for module, is_training in self._is_training:
                module.training = is_training
            if self.generators is not None:
                self.generators.restore()
            yield own

    def _take_tensors(self, live: list[Tensor]) -> None:
        fits = len(live) == len(self.tensors) and all(
            x is old and x.shape == kept.shape and x.dtype == kept.dtype
            for x, (old, kept) in zip(live, self.tensors, strict=True)
        )
        plain = [x.detach() for x in live]
        if fits and live:
            torch._foreach_copy_([kept for _, kept in self.tensors], plain)
        else:
            self.tensors = list(zip(live, [x.clone() for x in plain], strict=True))
            self._ids = set(map(id, live))


def outermost(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """Return one optimizer of those that share their state: the outermost wrapper of ours, any of those of others."""
    found = list(optimizers)
    inner = {id(getattr(optimizer, "inner", None)) for optimizer in found}
    chosen: dict[int, Optimizer] = {}
    for optimizer in found:
        if id(optimizer) not in inner:
            chosen.setdefault(id(optimizer.state), optimizer)
    return list(chosen.values())


def helpers_of(optimizer: Optimizer) -> list[Any]:
    """Return the objects beside an optimizer that remember something from step to step."""
    shared = getattr(optimizer, "_shared", None)
    found = [optimizer, shared, getattr(shared, "scaler", None), getattr(shared, "rollback", None)]
    return [helper for helper in found if helper is not None and shared is not None]


def _copied_states(states: Any, before: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Copy the state of an optimizer, into the copies of the last time where they fit."""
    copied: dict[Any, dict[str, Any]] = {}
    targets: list[Tensor] = []
    sources: list[Tensor] = []
    for parameter, state in states.items():
        old = before.get(parameter, {})
        new = copied[parameter] = {}
        for key, value in state.items():
            kept = old.get(key)
            if isinstance(value, Tensor) and isinstance(kept, Tensor) and _same_kind(value, kept):
                targets.append(kept)
                sources.append(value.detach())
                new[key] = kept
            else:
                new[key] = copied_value(value)
    if targets:
        torch._foreach_copy_(targets, sources)
    return copied


def _same_kind(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def copied_value(value: Any) -> Any:
    """Copy a value as deep as it holds tensors and plain containers; other objects are shared."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple, deque):
        return type(value)(copied_value(item) for item in value)
    if type(value) is dict:
        return {key: copied_value(item) for key, item in value.items()}
    return value


def _attributes(helper: Any) -> dict[str, Any]:
    return {key: copied_value(value) for key, value in vars(helper).items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    """Say whether an attribute is a value, not a part of the machinery (hooks, models, callbacks)."""
    if isinstance(value, (type(None), bool, int, float, str, Tensor)):
        return not isinstance(value, nn.Parameter)
    if isinstance(value, (list, tuple, deque, set)):
        return all(_is_plain(item) for item in value)
    return isinstance(value, dict) and all(_is_plain(item) for item in value.values())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors hold the same numbers; every NaN equals every other: their signs mean nothing."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    return a.is_floating_point() and bool(((a == b) | (a.isnan() & b.isnan())).all())


@contextlib.contextmanager
def _lent_data(live: list[Tensor], copies: dict[int, Tensor]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    own = [(x, x.data) for x in live]
    try:
        for x, data in own:
            x.data = copies.get(id(x), data).clone()
        yield own
    finally:
        for x, data in own:
            x.data = data


@contextlib.contextmanager
def _lent_gradients(live: list[Tensor], copies: dict[int, Tensor | None]) -> Iterator[None]:
    own = [(x, x.grad) for x in live if x.is_leaf and x.requires_grad]
    try:
        for x, _ in own:
            kept = copies.get(id(x))
            x.grad = None if kept is None else kept.clone()
        yield
    finally:
        for x, grad in own:
            x.grad = grad


@contextlib.contextmanager
def _lent_optimizer(optimizer: Optimizer, states: dict[Any, dict[str, Any]]) -> Iterator[dict[Any, dict[str, Any]]]:
    own = dict(optimizer.state)
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    try:
        optimizer.state.clear()
        for parameter, state in states.items():
            optimizer.state[parameter] = {key: copied_value(value) for key, value in state.items()}
        yield own
    finally:
        optimizer.state.clear()
        optimizer.state.update(own)
        for group, values in zip(optimizer.param_groups, settings, strict=True):
            group.update(values)


@contextlib.contextmanager
def _lent_helper(helper: Any, attributes: dict[str, Any] | None) -> Iterator[None]:
    own = dict(vars(helper))
    containers = {key: copy.copy(value) for key, value in own.items() if isinstance(value, _CONTAINERS)}
    try:
        if attributes is not None:
            vars(helper).update({key: copied_value(value) for key, value in attributes.items()})
        yield
    finally:
        vars(helper).clear()
        vars(helper).update(own)
        _refill(own, containers)


@contextlib.contextmanager
def _lent_modules(modules: list[nn.Module]) -> Iterator[None]:
    """Keep the plain attributes of modules: counters, lists, a weight that is computed anew in each forward."""
    own = [(module, dict(vars(module))) for module in modules]
    containers = [
        {
            key: copy.copy(value)
            for key, value in values.items()
            if type(value) in _CONTAINERS and not key.startswith("_") and len(value) < _MANY
        }
        for _, values in own
    ]
    try:
        yield
    finally:
        for (module, values), copies in zip(own, containers, strict=True):
            vars(module).clear()
            vars(module).update(values)
            _refill(values, copies)


def _refill(values: dict[str, Any], copies: dict[str, Any]) -> None:
    """Give containers that the replay may have changed what they held before, in place."""
    for key, before in copies.items():
        value = values[key]
        if isinstance(value, list):
            value[:] = before
        else:
            value.clear()
            (value.extend if isinstance(value, deque) else value.update)(before)
