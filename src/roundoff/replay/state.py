"""The state of a training: everything that a step changes and the next step starts from."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.kernels.host_copies import HostCopy, can_be_copied, stage
from roundoff.precision.applied_recipe import StepMemory
from roundoff.precision.optimizer import RecipeOptimizer
from roundoff.record.accelerator import Generators
from roundoff.record.identity import IdentitySet, live_instances
from roundoff.record.loop.follower import is_in_training
from roundoff.record.structure import outermost_optimizers, parameters_of
from roundoff.replay.python_state import (
    ModuleAttributes,
    Undo,
    other_threads_run_users_code,
    own_generators,
    restoring_python_state,
    save_generator,
)
from roundoff.replay.swapping import (
    copy_all_,
    copy_value,
    is_plain,
    local_part,
    swapped_attributes,
    swapped_data,
    swapped_flags,
    swapped_gradients,
    swapped_optimizer,
)
from roundoff.torch_private import hidden_from_modes, local_tensor, preserved_versions


class Training:
    """Knows the models, optimizers and scalers of a training, from the moment each is first used."""

    def __init__(self) -> None:
        self.models: IdentitySet[nn.Module] = IdentitySet()
        self.optimizers: IdentitySet[Optimizer] = IdentitySet()
        self.scalers: IdentitySet[Any] = IdentitySet()
        self._generators: list[Any] | None = None
        self._known: dict[int, ref[Tensor]] = {}

    def add_model(self, model: nn.Module) -> bool:
        """Add a model; return whether it is new. A part of a known one is not: a quiet step may show it alone."""
        if model in self.models:
            return False
        is_part = any(part is model for known in self.models for part in known.modules())
        self.models.add(model)
        if is_part:
            return False
        self._generators = None
        self.refresh()
        return True

    def add_optimizer(self, optimizer: Optimizer) -> bool:
        """Add an optimizer; return whether it is new. Of one that a framework has wrapped, the inner one is added."""
        while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = inner
        if optimizer in self.optimizers:
            return False
        self.optimizers.add(optimizer)
        self.refresh()
        return True

    def find_optimizers(self) -> None:
        """Look for optimizers that have not stepped yet, and for scalers."""
        for found in live_instances(Optimizer, torch.amp.GradScaler):
            if isinstance(found, torch.amp.GradScaler):
                self.scalers.add(found)
            elif hasattr(found, "param_groups") and self._may_step_here(found):
                self.add_optimizer(found)

    def _may_step_here(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer may belong to this training: not to one that failed or runs in another thread."""
        parameters = [p for p in parameters_of(optimizer) if not nn.parameter.is_lazy(p)]
        if any(self.is_state(p) for p in parameters):
            return True
        if other_threads_run_users_code():
            return False
        with hidden_from_modes(), torch.no_grad():
            return all(not p.is_meta and bool(torch.isfinite(p).all()) for p in parameters)

    def refresh(self) -> None:
        """Look up again which tensors are state: layers may have been replaced, optimizer state created."""
        self._known = {id(x): ref(x) for x in self.tensors()}

    def is_state(self, x: Tensor) -> bool:
        """Return whether a tensor is a parameter or buffer of a known model, or a parameter of an optimizer."""
        known = self._known.get(id(x))
        return known is not None and known() is x

    def trainable(self) -> tuple[bool, ...]:
        """Return, for each known tensor that is alive, whether it requires a gradient."""
        return tuple([x.requires_grad for known in self._known.values() if (x := known()) is not None])

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

    @property
    def num_state_bytes(self) -> int:
        """The size of everything that a snapshot copies, with what optimizers will keep once they have stepped."""
        return self.num_bytes + sum(map(_optimizer_bytes, outermost_optimizers(self.optimizers)))

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
        self.states: list[tuple[Optimizer, dict[Any, Any]]] = []

    def first_difference(self) -> str | None:
        """Describe what differs in its bits from the training's own state: a weight, a buffer, optimizer state."""
        for x, data in self._data:
            if not same_bits(local_part(x), data):
                return "a weight" if isinstance(x, nn.Parameter) else "a buffer"
        for optimizer, own in self.states:
            for parameter, state in own.items():
                if not isinstance(state, dict):
                    continue
                for key, value in state.items():
                    other = optimizer.state.get(parameter, {}).get(key)
                    if isinstance(value, Tensor) and not (
                        isinstance(other, Tensor) and same_bits(local_part(value), local_part(other))
                    ):
                        return f"the optimizer's {key}"
        return None


class TrainingState:
    """A copy of the state of a training at one moment; a later copy can reuse its memory.

    It keeps nothing of the training itself alive: the copy of what the script has dropped since is of no use. Tensors
    of accelerators are copied to the host, without waiting; the reader of the copies waits.
    """

    def __init__(self) -> None:
        self.generators: Generators | None = None
        self.has_gradients = False
        self._tensors: list[tuple[ref[Tensor], Tensor]] = []
        self._gradients: list[tuple[ref[Tensor], Tensor | None]] = []
        self._optimizers: list[tuple[ref[Optimizer], _States]] = []
        self._helpers: list[tuple[ref[Any], dict[str, Any]]] = []
        self._recipes: list[tuple[ref[RecipeOptimizer], StepMemory]] = []
        self._own_generators: list[Undo] = []
        self._attributes: ModuleAttributes | None = None
        self._is_training: list[tuple[ref[nn.Module], bool]] = []
        self._flags: dict[int, bool] = {}
        self._copied_from: set[torch.device] = set()
        """Devices that may not have finished copying."""

    @property
    def tensors(self) -> list[tuple[Tensor, Tensor]]:
        """Pairs (live, copy) of parameters and buffers; the copies of an accelerator's are on the host."""
        self._wait()
        return _living(self._tensors)

    @property
    def gradients(self) -> list[tuple[Tensor, Tensor | None]]:
        """Pairs (parameter, copy of its gradient); there when a step turned out to start from gradients."""
        self._wait()
        return _living(self._gradients)

    def _wait(self) -> None:
        for device in self._copied_from:
            torch.accelerator.synchronize(device)
        self._copied_from.clear()

    @property
    def num_bytes(self) -> int:
        """The size of the copies."""
        copies = [kept for _, kept in self._tensors] + [kept for _, kept in self._gradients if kept is not None]
        for _, states in self._optimizers:
            held = [value for _, state in states if isinstance(state, dict) for value in state.values()]
            copies += [value.host if isinstance(value, HostCopy) else value for value in held
                       if isinstance(value, (Tensor, HostCopy))]  # fmt: skip
        return sum(kept.numel() * kept.element_size() for kept in copies)

    def take(self, training: Training) -> None:
        """Copy everything, into the memory of the previous copy where it fits."""
        with hidden_from_modes(), torch.no_grad():
            self.generators = Generators.now()
            live = training.tensors()
            self._take_tensors(live)
            self._copied_from = _devices_of_copies(live)
            self._flags = {id(x): x.requires_grad for x in live if x.is_leaf}
            self._gradients, self.has_gradients = [], False
            before = {id(optimizer): states for optimizer, states in _living(self._optimizers)}
            self._optimizers = [
                (ref(optimizer), _copy_states(optimizer.state, before.get(id(optimizer), [])))
                for optimizer in outermost_optimizers(training.optimizers)
            ]
            self._helpers = [(ref(helper), _plain_attributes(helper)) for helper in training.scalers]
            self._recipes = [(ref(optimizer), optimizer.remember()) for optimizer in training.recipes()]
            self._own_generators = [save_generator(generator) for generator in training.generators()]
            self._attributes = ModuleAttributes(training.modules(), is_state=training.is_state)
            self._is_training = [(ref(module), is_in_training(module)) for module in training.modules()]

    def join(self, training: Training, tensors: Iterable[Tensor]) -> None:
        """Add tensors that were first used after the copy was made, and have not changed since."""
        with hidden_from_modes(), torch.no_grad():
            known = {id(live) for live, _ in _living(self._tensors)}
            new = [x for x in tensors if id(x) not in known]
            self._tensors += [(ref(x), stage(local_part(x))) for x in new]
            self._copied_from |= _devices_of_copies(new)
            modules = {id(module) for module, _ in _living(self._is_training)}
            self._is_training += [(ref(m), is_in_training(m)) for m in training.modules() if id(m) not in modules]

    def take_gradients(self) -> None:
        """Copy the gradients: the step adds to them."""
        if self.has_gradients:
            return
        self.has_gradients = True
        with hidden_from_modes(), torch.no_grad():
            self._copied_from |= _devices_of_copies(live for live, _ in _living(self._tensors))
            self._gradients = [
                (ref(live), None if live.grad is None else stage(live.grad.detach()))
                for live, _ in _living(self._tensors)
                if live.requires_grad
            ]

    def install(self, training: Training) -> None:
        """Put the training into this state permanently, except for generators, the modes of modules and scalers.

        A loss scaler goes on with the protocol of the loop: its `update` comes after the step that is undone.
        """
        with hidden_from_modes(), torch.no_grad():
            for live, kept in self.tensors:
                local_part(live).copy_(kept)
            for live, gradient in self.gradients:
                live.grad = None if gradient is None else gradient.to(live.device, copy=True)
            for optimizer, states in _living(self._optimizers):
                optimizer.state.clear()
                for parameter, state in _living(states):
                    optimizer.state[parameter] = copy_value(state)
            for recipe, memory in _living(self._recipes):
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
            for recipe, memory in _living(self._recipes):
                stack.enter_context(recipe.repeating(memory))
            stack.enter_context(restoring_python_state(training.modules(), but=lambda x: id(x) in ids))
            parts = [part for x in live if (part := local_tensor(x)) is not None]
            stack.enter_context(preserved_versions([*live, *parts]))
            if self._attributes is not None:
                stack.enter_context(self._attributes.swapped_in(training.modules()))
            own = OriginalState(stack.enter_context(swapped_data(live, {id(x): kept for x, kept in self.tensors})))
            stack.enter_context(swapped_flags(live, self._flags))
            stack.enter_context(swapped_gradients(live, {id(x): kept for x, kept in self.gradients}))
            kept = {id(optimizer): dict(_living(states)) for optimizer, states in _living(self._optimizers)}
            for optimizer in outermost_optimizers(training.optimizers):
                states = stack.enter_context(swapped_optimizer(optimizer, kept.get(id(optimizer), {})))
                own.states.append((optimizer, states))
            attributes = {id(helper): values for helper, values in _living(self._helpers)}
            for helper in training.scalers:
                stack.enter_context(swapped_attributes(helper, attributes.get(id(helper))))
            for module, is_training in _living(self._is_training):
                module.training = is_training
            for restore in self._own_generators:
                restore()
            if self.generators is not None:
                self.generators.restore()
            yield own

    def _take_tensors(self, live: list[Tensor]) -> None:
        plain = [local_part(x) for x in live]
        fits = len(live) == len(self._tensors) and all(
            x is old() and _is_copy_of(kept, part)
            for x, part, (old, kept) in zip(live, plain, self._tensors, strict=True)
        )
        if fits and live:
            copy_all_([kept for _, kept in self._tensors], plain)
        else:
            self._tensors = [(ref(x), stage(part)) for x, part in zip(live, plain, strict=True)]


_States: TypeAlias = list[tuple[Callable[[], Any], Any]]
"""The state of an optimizer, by parameter; some keep more than that there, under names."""

_Owner = TypeVar("_Owner")
_Value = TypeVar("_Value")


def _living(pairs: Iterable[tuple[Callable[[], _Owner | None], _Value]]) -> list[tuple[_Owner, _Value]]:
    """Return the pairs whose owner the script still has."""
    return [(owner, value) for reference, value in pairs if (owner := reference()) is not None]


def _optimizer_bytes(optimizer: Optimizer) -> int:
    """Return the size of an optimizer's state; before its first step, what its kind keeps for each parameter."""
    states = [
        value
        for state in optimizer.state.values()
        if isinstance(state, dict)
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    if states:
        return sum(x.numel() * x.element_size() for x in states)
    num_copies = 2
    if "momentum" in optimizer.defaults and "betas" not in optimizer.defaults:
        num_copies = 1 if optimizer.defaults["momentum"] else 0
    parameters = [x for x in parameters_of(optimizer) if not nn.parameter.is_lazy(x)]
    return num_copies * sum(x.numel() * x.element_size() for x in parameters)


def _copy_states(states: Any, before: _States) -> _States:
    """Copy the state of an optimizer, into the previous copies where they fit."""
    copied: _States = []
    targets: list[Tensor] = []
    sources: list[Tensor] = []
    old_states = {id(parameter): state for parameter, state in _living(before)}
    for parameter, state in states.items():
        owner = ref(parameter) if isinstance(parameter, Tensor) else functools.partial(_return, parameter)
        if not isinstance(state, dict):
            copied.append((owner, copy_value(state)))
            continue
        old = old_states.get(id(parameter), {})
        new: dict[str, Any] = {}
        copied.append((owner, new))
        for key, value in state.items():
            kept = old.get(key)
            if isinstance(kept, HostCopy) and isinstance(value, Tensor) and kept.fits(value):
                targets.append(kept.host)
                sources.append(value)
                new[key] = kept
            elif isinstance(value, Tensor) and can_be_copied(value):
                new[key] = HostCopy(value)
            elif isinstance(value, Tensor) and isinstance(kept, Tensor) and _is_copy_of(kept, value):
                targets.append(local_part(kept))
                sources.append(local_part(value))
                new[key] = kept
            else:
                new[key] = copy_value(value)
    copy_all_(targets, sources)
    return copied


def _return(value: _Value) -> _Value:
    return value


def _devices_of_copies(live: Iterable[Tensor]) -> set[torch.device]:
    """Return the accelerators whose tensors are copied without waiting."""
    return {x.device for x in live if not x.is_cpu and can_be_copied(local_part(x))}


def _is_copy_of(kept: Tensor, x: Tensor) -> bool:
    is_there = kept.device == x.device or (kept.is_cpu and can_be_copied(x))
    return kept.shape == x.shape and kept.dtype == x.dtype and kept.layout == x.layout and is_there


def _plain_attributes(helper: Any) -> dict[str, Any]:
    return {key: copy_value(value) for key, value in vars(helper).items() if is_plain(value)}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same numbers; all NaN are equal, since their bits mean nothing."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    return a.is_floating_point() and bool(((a == b) | (a.isnan() & b.isnan())).all())
