"""The state of a training: everything that a step changes and the next step starts from."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.precision.optimizer import RecipeOptimizer
from roundoff.precision.step_memory import StepMemory
from roundoff.record.torch_private import hidden_from_modes, local_tensor, preserved_versions
from roundoff.replay.generators import Generators
from roundoff.replay.python_state import ModuleAttributes, Undo, own_generators, restoring_python_state, save_generator
from roundoff.replay.swapping import (
    copy_value,
    is_plain,
    local_part,
    swapped_attributes,
    swapped_data,
    swapped_flags,
    swapped_gradients,
    swapped_optimizer,
)


class Training:
    """Knows the models, optimizers and scalers of a training, from the moment each is first used."""

    def __init__(self) -> None:
        self.models: WeakSet[nn.Module] = WeakSet()
        self.optimizers: WeakSet[Optimizer] = WeakSet()
        self.scalers: WeakSet[Any] = WeakSet()
        self._generators: list[Any] | None = None
        self._known: dict[int, Tensor] = {}

    def add_model(self, model: nn.Module) -> bool:
        """Add a model; say whether it is new."""
        if model in self.models:
            return False
        self.models.add(model)
        self._generators = None
        self.refresh()
        return True

    def add_optimizer(self, optimizer: Optimizer) -> bool:
        """Add an optimizer; say whether it is new. Of one that a framework has wrapped, the inner one is added."""
        while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = inner
        if optimizer in self.optimizers:
            return False
        self.optimizers.add(optimizer)
        self.refresh()
        return True

    def find_optimizers(self) -> None:
        """Look for optimizers that have not stepped yet, and for scalers."""
        # type(), not isinstance: that would make lazy proxies among the objects load what they stand for
        for found in gc.get_objects():
            if issubclass(type(found), Optimizer) and hasattr(found, "param_groups") and not self._is_left_over(found):
                self.add_optimizer(found)
            elif issubclass(type(found), torch.amp.GradScaler):
                self.scalers.add(found)

    def _is_left_over(self, optimizer: Optimizer) -> bool:
        """Say whether an optimizer belongs to an earlier training that broke, as in a notebook."""
        parameters = [p for p in parameters_of(optimizer) if not nn.parameter.is_lazy(p)]
        if any(self.is_state(p) for p in parameters):
            return False
        with hidden_from_modes(), torch.no_grad():
            return not all(bool(torch.isfinite(p).all()) for p in parameters)

    def refresh(self) -> None:
        """Look up again which tensors are state: layers may have been replaced, optimizer state created."""
        self._known = {id(x): x for x in self.tensors()}

    def is_state(self, x: Tensor) -> bool:
        """Say whether a tensor is a parameter or buffer of a known model, or a parameter of an optimizer."""
        return self._known.get(id(x)) is x

    def tensors(self) -> list[Tensor]:
        """Return every parameter and buffer, once, in a fixed order."""
        found: dict[int, Tensor] = {}
        for model in self.models:
            for x in (*model.parameters(), *model.buffers()):
                found.setdefault(id(x), x)
        for optimizer in self.optimizers:
            for x in parameters_of(optimizer):
                found.setdefault(id(x), x)
        return [x for x in found.values() if not nn.parameter.is_lazy(x)]

    @property
    def num_bytes(self) -> int:
        """The size of parameters and buffers."""
        return sum(x.numel() * x.element_size() for x in self.tensors())

    def buffers(self) -> list[tuple[str, Tensor]]:
        """Return the buffers that hold floats, with their names."""
        found = [entry for model in self.models for entry in model.named_buffers()]
        return [(name, x) for name, x in found if x.is_floating_point() and x.numel()]

    def generators(self) -> list[Any]:
        """Return the random generators that the models hold."""
        if self._generators is None:
            self._generators = own_generators(self.modules())
        return self._generators

    def recipes(self) -> list[RecipeOptimizer]:
        """Return the optimizers of our recipes, which remember more than their state."""
        return [
            optimizer for optimizer in outermost_optimizers(self.optimizers) if isinstance(optimizer, RecipeOptimizer)
        ]

    def modules(self) -> Iterator[nn.Module]:
        """Yield every module once."""
        seen: set[int] = set()
        for model in self.models:
            for module in model.modules():
                if id(module) not in seen:
                    seen.add(id(module))
                    yield module


class OriginalState:
    """The training's own state while another one is swapped in."""

    def __init__(self, data: list[tuple[Tensor, Tensor]]) -> None:
        self._data = data
        self.states: list[tuple[Optimizer, dict[Any, dict[str, Any]]]] = []

    def first_difference(self) -> str | None:
        """Say what differs in its bits from the training's own state: a weight, a buffer, optimizer state."""
        for x, data in self._data:
            if not same_bits(local_part(x), data):
                return "a weight" if isinstance(x, nn.Parameter) else "a buffer"
        for optimizer, own in self.states:
            for parameter, state in own.items():
                for key, value in state.items():
                    other = optimizer.state.get(parameter, {}).get(key)
                    if isinstance(value, Tensor) and not (
                        isinstance(other, Tensor) and same_bits(local_part(value), local_part(other))
                    ):
                        return f"the optimizer's {key}"
        return None


class TrainingState:
    """A copy of the state of a training at one moment; a later copy can reuse its memory."""

    def __init__(self) -> None:
        self.generators: Generators | None = None
        self.tensors: list[tuple[Tensor, Tensor]] = []
        """Pairs (live, copy) of parameters and buffers."""
        self.gradients: list[tuple[Tensor, Tensor | None]] = []
        """Pairs (parameter, copy of its gradient); filled in when a step turns out to start from gradients."""
        self.has_gradients = False
        self._optimizers: list[tuple[Optimizer, dict[Any, dict[str, Any]]]] = []
        self._helpers: list[tuple[Any, dict[str, Any]]] = []
        self._recipes: list[tuple[RecipeOptimizer, StepMemory]] = []
        self._own_generators: list[Undo] = []
        self._attributes: ModuleAttributes | None = None
        self._is_training: list[tuple[nn.Module, bool]] = []
        self._flags: dict[int, bool] = {}
        self._ids: set[int] = set()

    @property
    def num_bytes(self) -> int:
        """The size of the copies."""
        copies = [kept for _, kept in self.tensors] + [kept for _, kept in self.gradients if kept is not None]
        for _, states in self._optimizers:
            copies += [value for state in states.values() for value in state.values() if isinstance(value, Tensor)]
        return sum(kept.numel() * kept.element_size() for kept in copies)

    def take(self, training: Training) -> None:
        """Copy everything, into the memory of the previous copy where it fits."""
        with hidden_from_modes(), torch.no_grad():
            self.generators = Generators.now()
            live = training.tensors()
            self._take_tensors(live)
            self._flags = {id(x): x.requires_grad for x in live if x.is_leaf}
            self.gradients, self.has_gradients = [], False
            before = {id(optimizer): states for optimizer, states in self._optimizers}
            self._optimizers = [
                (optimizer, _copy_states(optimizer.state, before.get(id(optimizer), {})))
                for optimizer in outermost_optimizers(training.optimizers)
            ]
            self._helpers = [(helper, _plain_attributes(helper)) for helper in training.scalers]
            self._recipes = [(optimizer, optimizer.remember()) for optimizer in training.recipes()]
            self._own_generators = [save_generator(generator) for generator in training.generators()]
            self._attributes = ModuleAttributes(training.modules(), is_state=training.is_state)
            self._is_training = [(module, module.training) for module in training.modules()]

    def join(self, training: Training, tensors: Iterable[Tensor]) -> None:
        """Add tensors that were first used after the copy was made, and have not changed since."""
        with hidden_from_modes(), torch.no_grad():
            new = [x for x in tensors if id(x) not in self._ids]
            self.tensors += [(x, local_part(x).clone()) for x in new]
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
        """Put the training into this state permanently, except for generators and the modes of modules."""
        with hidden_from_modes(), torch.no_grad():
            for live, kept in self.tensors:
                local_part(live).copy_(kept)
            for live, gradient in self.gradients:
                live.grad = None if gradient is None else gradient.clone()
            for optimizer, states in self._optimizers:
                optimizer.state.clear()
                for parameter, state in states.items():
                    optimizer.state[parameter] = {key: copy_value(value) for key, value in state.items()}
            for helper, attributes in self._helpers:
                vars(helper).update({key: copy_value(value) for key, value in attributes.items()})
            for recipe, memory in self._recipes:
                recipe.recall(memory)

    @contextlib.contextmanager
    def swapped_in(self, training: Training) -> Iterator[OriginalState]:
        """Put the training into this state inside the block; afterwards it is bit for bit as before.

        The live memory is never written to: models and optimizers get other memory during the block, so that graphs and
        views that the user holds stay valid whatever happens inside.
        """
        with contextlib.ExitStack() as stack, hidden_from_modes():
            current = Generators.now()
            stack.callback(current.restore)
            live = list({id(x): x for x in (*training.tensors(), *(x for x, _ in self.tensors))}.values())
            ids = set(map(id, live))
            for recipe, memory in self._recipes:
                stack.enter_context(recipe.repeating(memory))
            stack.enter_context(restoring_python_state(training.modules(), but=lambda x: id(x) in ids))
            parts = [part for x in live if (part := local_tensor(x)) is not None]
            stack.enter_context(preserved_versions([*live, *parts]))
            if self._attributes is not None:
                stack.enter_context(self._attributes.swapped_in(training.modules()))
            own = OriginalState(stack.enter_context(swapped_data(live, {id(x): kept for x, kept in self.tensors})))
            stack.enter_context(swapped_flags(live, self._flags))
            stack.enter_context(swapped_gradients(live, {id(x): kept for x, kept in self.gradients}))
            kept = {id(optimizer): states for optimizer, states in self._optimizers}
            for optimizer in outermost_optimizers(training.optimizers):
                states = stack.enter_context(swapped_optimizer(optimizer, kept.get(id(optimizer), {})))
                own.states.append((optimizer, states))
            attributes = {id(helper): values for helper, values in self._helpers}
            for helper in training.scalers:
                stack.enter_context(swapped_attributes(helper, attributes.get(id(helper))))
            for module, is_training in self._is_training:
                module.training = is_training
            for restore in self._own_generators:
                restore()
            if self.generators is not None:
                self.generators.restore()
            yield own

    def _take_tensors(self, live: list[Tensor]) -> None:
        plain = [local_part(x) for x in live]
        fits = len(live) == len(self.tensors) and all(
            x is old and part.shape == kept.shape and part.dtype == kept.dtype
            for x, part, (old, kept) in zip(live, plain, self.tensors, strict=True)
        )
        if fits and live:
            torch._foreach_copy_([kept for _, kept in self.tensors], plain)
        else:
            self.tensors = list(zip(live, [x.clone() for x in plain], strict=True))
            self._ids = set(map(id, live))


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of an optimizer, group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def outermost_optimizers(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """Return one of the optimizers that share a state: the outermost wrapper of ours, any one of other libraries."""
    found = list(optimizers)
    inner = {id(getattr(optimizer, "inner", None)) for optimizer in found}
    chosen: dict[int, Optimizer] = {}
    for optimizer in found:
        if id(optimizer) not in inner:
            chosen.setdefault(id(optimizer.state), optimizer)
    return list(chosen.values())


def _copy_states(states: Any, before: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Copy the state of an optimizer, into the previous copies where they fit."""
    copied: dict[Any, dict[str, Any]] = {}
    targets: list[Tensor] = []
    sources: list[Tensor] = []
    for parameter, state in states.items():
        old = before.get(parameter, {})
        new = copied[parameter] = {}
        for key, value in state.items():
            kept = old.get(key)
            if isinstance(value, Tensor) and isinstance(kept, Tensor) and _same_kind(value, kept):
                targets.append(local_part(kept))
                sources.append(local_part(value))
                new[key] = kept
            else:
                new[key] = copy_value(value)
    if targets:
        torch._foreach_copy_(targets, sources)
    return copied


def _same_kind(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def _plain_attributes(helper: Any) -> dict[str, Any]:
    return {key: copy_value(value) for key, value in vars(helper).items() if is_plain(value)}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors hold the same numbers; all NaN are equal, since their bits mean nothing."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    return a.is_floating_point() and bool(((a == b) | (a.isnan() & b.isnan())).all())
