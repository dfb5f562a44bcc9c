"""Describes the state of a training where it is saved and where it goes on, so that a resumption can be compared."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from roundoff.kernels import row as columns
from roundoff.kernels.summaries import summarize
from roundoff.record.accelerator import Generators
from roundoff.record.identity import IdentityDict, IdentitySet, live_instances
from roundoff.record.loop.calls import learning_rates
from roundoff.record.structure import outermost_optimizers, parameters_of
from roundoff.replay.state import Training
from roundoff.replay.swapping import local_part
from roundoff.runs import JsonValue, RunWriter, StateFacts, StateGroup
from roundoff.torch_private import has_no_memory, version_of
from roundoff.watch.budget import TimeBudget
from roundoff.watch.facts.tensor_hashes import hash_columns, hash_in, hash_of
from roundoff.words import size_text

_STATES = "states"
_PART = 0.5
"""The share of the budget that hashing states may take, after the first ones."""
_MAX_FREE_STATES = 16
_FREE_SECONDS = 1.0
"""So many states are hashed whatever they cost, as long as all of them took less than this."""
_MAX_BYTES = 4 * 2**30
"""A larger state is not hashed."""
_REHASHED_BYTES = 256 * 2**20
"""Tensors of a larger state are not hashed again when a step begins, if torch says that they have not changed."""
_MAX_ENTRIES = 200_000
"""So many hashes of single tensors a run may hold; after that only those of groups are written."""
_FOLLOWED_STEPS = 4
"""The batches of so many steps after a save or load are hashed."""
_MAX_BATCH_TENSORS = 8
_MAX_COPIES = 4
_MAX_DEPTH = 3
_MAX_KEYS = 64

_Moment = Literal["saved", "began"]
_After = Literal["save", "load"]
_Kind = Literal["weight", "buffer", "optimizer", "copy"]


@dataclass(slots=True)
class _StateTensors:
    """The named tensors of one group, which become a `StateGroup`."""

    kind: _Kind
    name: str
    tensors: dict[str, Tensor] = field(default_factory=dict)


class TrainingStates:
    """Writes hashes of the state when the loop saves it, and before the step after a save or a load."""

    def __init__(self, writer: RunWriter, training: Training, *, budget: TimeBudget) -> None:
        self.num_followed = 0
        """The batches of this many steps are still to be hashed."""
        self.awaits: _After | None = None
        """After what the next step begins, if its state is to be described."""
        self._writer = writer
        self._training = training
        self._budget = budget
        self._loaded: IdentitySet[nn.Module] = IdentitySet()
        self._copies: IdentitySet[nn.Module] = IdentitySet()
        self._schedulers: IdentitySet[LRScheduler] = IdentitySet()
        self._saved_step: int | None = None
        self._began: tuple[int, _After] | None = None
        self._has_read = False
        self._is_hashing = True
        """Whether the budget allows to hash the state that is described, and that of the step after it."""
        self._num_described = 0
        self._seconds = 0.0
        self._num_entries = 0
        self._is_large = False
        self._hashed: IdentityDict[Tensor, tuple[int, int, tuple[int, float]]] = IdentityDict()
        """Of each tensor of a large state: its version and address, its hash and norm."""

    def saved(self, value: Any, step: int) -> None:
        """Describe the state if what was saved holds it; once for all files that are saved between two steps."""
        if step == self._saved_step or not self._holds_state(value, _MAX_DEPTH):
            return
        self._saved_step = step
        keys = [key for key in value if isinstance(key, str)] if isinstance(value, dict) else []
        self._hashed = IdentityDict()
        self._is_hashing = self._has_room()
        self._describe(step, "saved", "save", holds=tuple(keys[:_MAX_KEYS]))
        self.awaits = "save" if self._is_hashing else self.awaits

    def read(self, *, is_first: bool) -> None:
        """Note that the loop has read a file; what it loads then may be a checkpoint, whenever it does."""
        self._has_read = True
        self.awaits = "load" if is_first else self.awaits

    def loaded(self, owner: Any, *, is_first: bool) -> None:
        """Note that the loop has loaded something, not the weights that it copies from one model to another."""
        if isinstance(owner, nn.Module):
            self._loaded.add(owner)
        if is_first or self._has_read:
            self.awaits = "load"

    def step_opened(self, step: int) -> None:
        """Describe the state before a step, if it comes after a save or a load; again if the step begins again."""
        after, self.awaits, self._has_read = self.awaits, None, False
        if after is None and self._began is not None and self._began[0] == step:
            after = self._began[1]
        if after is None:
            self.num_followed = max(0, self.num_followed - 1)
            return
        self._is_hashing |= after == "load" and self._has_room()
        self._began = (step, after)
        self._describe(step, "began", after)
        self._hashed = IdentityDict()
        self.num_followed = _FOLLOWED_STEPS

    def see_batch(self, step: int, site: str, args: Iterable[Any], kwargs: dict[str, Any]) -> None:
        """Hash what the loop gives a model."""
        named = [
            *((f"{site}[{place}]", x) for place, x in enumerate(args)),
            *((f"{site}:{k}", x) for k, x in kwargs.items()),
        ]
        plain = [(place, local_part(x)) for place, x in named if isinstance(x, Tensor) and _has_values(x)]
        hashes = [(place, hash_of(x)) for place, x in plain[:_MAX_BATCH_TENSORS]]
        if hashes:
            self._writer.write_hashes(hash_columns(step, "batch", hashes))

    def _holds_state(self, value: Any, depth: int) -> bool:
        """Say whether something holds weights of the training or the state of an optimizer."""
        if isinstance(value, nn.Module):
            return True
        if not isinstance(value, dict):
            return False
        if "param_groups" in value:
            return True
        names = {name for model in self._training.models for name, _ in model.named_parameters()}
        items = list(itertools.islice(value.items(), _MAX_KEYS))
        return any(
            _is_named(key, names) if isinstance(item, Tensor) else depth > 0 and self._holds_state(item, depth - 1)
            for key, item in items
        )

    def _describe(self, step: int, moment: _Moment, after: _After, *, holds: tuple[str, ...] = ()) -> None:
        """Write the state."""
        began = time.perf_counter()
        if self._num_described.bit_count() <= 1:  # looking through all objects takes long
            self._find_helpers()
        why_not = self._why_not_hashed()
        self._num_described += 1
        with torch.no_grad():
            models, groups = self._models(), list[StateGroup]()
            if why_not is None:
                groups = [self._summarize(group) for group in self._groups(models) if group.tensors]
            scaler = next(iter(self._training.scalers), None)
            scaling = {} if scaler is None else scaler.state_dict()
            optimizers = self._named_optimizers(_names_of(models))
            facts = StateFacts(
                step=step,
                moment=moment,
                after=after,
                holds=holds,
                groups=tuple(groups),
                why_no_groups=why_not,
                rates={name: learning_rates(optimizer) for name, optimizer in optimizers},
                updates={name: n for name, optimizer in optimizers if (n := _num_updates(optimizer)) is not None},
                schedules=_schedules(self._schedulers),
                loss_scale=scaling.get("scale"),
                loss_scale_age=scaling.get("_growth_tracker"),
                generators=_generator_hashes(),
            )
        self._writer.write(facts)
        seconds = time.perf_counter() - began
        self._seconds += seconds
        self._budget.spend(seconds, _STATES)

    def _why_not_hashed(self) -> str | None:
        num_bytes = self._training.num_state_bytes
        self._is_large = num_bytes > _REHASHED_BYTES
        if num_bytes > _MAX_BYTES:
            return f"the state takes {size_text(num_bytes)}; more than {size_text(_MAX_BYTES)} are not hashed"
        return None if self._is_hashing else "it was not hashed, in order to stay within the budget"

    def _has_room(self) -> bool:
        """Say whether another state may be hashed: among the first ones, or as the budget allows."""
        is_first = self._num_described < 2 or (self._num_described < _MAX_FREE_STATES and self._seconds < _FREE_SECONDS)
        return is_first or self._budget.has_room(_STATES, part=_PART)

    def _find_helpers(self) -> None:
        """Look for schedulers, and for copies of models that no optimizer trains."""
        living = live_instances(LRScheduler, nn.Module)
        modules = [found for found in living if issubclass(type(found), nn.Module)]
        for scheduler in living:
            if issubclass(type(scheduler), LRScheduler):
                self._schedulers.add(scheduler)
        trained = {id(p) for optimizer in self._training.optimizers for p in parameters_of(optimizer)}
        known = {id(module) for module in self._training.modules()}
        shapes = [of_model for model in self._training.models if (of_model := _shapes(model))]
        found = [module for module in modules if id(module) not in known and _shapes(module) in shapes]
        found = [module for module in found if not any(id(p) in trained for p in module.parameters())]
        own = {id(p) for model in self._training.models for p in model.parameters()}
        found = [module for module in found if not any(id(p) in own for p in module.parameters())]
        inner = {id(part) for module in found for part in itertools.islice(module.modules(), 1, None)}
        for module in [module for module in found if id(module) not in inner][:_MAX_COPIES]:
            self._copies.add(module)

    def _models(self) -> list[tuple[str, _Kind, nn.Module]]:
        """Return models and copies by their classes, numbered from the second of a class on."""
        known = {id(module) for module in self._training.modules()}
        copies = {id(part) for copy in self._copies for part in copy.modules()}
        others = [m for m in self._loaded if id(m) not in known and id(m) not in copies]
        found: list[tuple[_Kind, nn.Module]] = [("weight", m) for m in (*self._training.models, *others) if _shapes(m)]
        found += [("copy", m) for m in self._copies if id(m) not in known]
        count: Counter[str] = Counter()
        named = []
        for kind, module in found:
            name = type(module).__name__
            count[name] += 1
            named.append((name if count[name] == 1 else f"{name}#{count[name]}", kind, module))
        return named

    def _groups(self, models: list[tuple[str, _Kind, nn.Module]]) -> Iterator[_StateTensors]:
        """Yield weights, buffers and copies, then each kind of state of each optimizer."""
        for name, kind, module in models:
            yield _StateTensors(kind, name, dict(module.named_parameters()))
            yield _StateTensors("buffer" if kind == "weight" else kind, name, dict(module.named_buffers()))
        names = _names_of(models)
        for name, optimizer in self._named_optimizers(names):
            groups: dict[str, _StateTensors] = {}
            for place, parameter in enumerate(parameters_of(optimizer)):
                state = optimizer.state.get(parameter)
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, Tensor) and key != "step":  # which is among `updates`
                        group = groups.setdefault(str(key), _StateTensors("optimizer", f"{name}.{key}"))
                        group.tensors[names.get(id(parameter), str(place))] = value
            yield from groups.values()

    def _named_optimizers(self, names: dict[int, str]) -> list[tuple[str, Optimizer]]:
        """Return optimizers by their classes; several of a class in the order of their first parameters."""
        found = []
        for optimizer in outermost_optimizers(self._training.optimizers):
            first = next((names[id(p)] for p in parameters_of(optimizer) if id(p) in names), None)
            if first is not None:  # others belong to a training that has ended
                found.append((type(optimizer).__name__, first, optimizer))
        found.sort(key=lambda item: item[:2])
        count: Counter[str] = Counter()
        named = []
        for name, _, optimizer in found:
            count[name] += 1
            named.append((name if count[name] == 1 else f"{name}#{count[name]}", optimizer))
        return named

    def _summarize(self, group: _StateTensors) -> StateGroup:
        found = {name: self._hash_and_norm(x) for name, x in group.tensors.items() if _has_values(x)}
        hashes = {name: f"{number:016x}" for name, (number, _) in found.items()}
        norms = [norm for _, norm in found.values()]
        self._num_entries += len(hashes)
        return StateGroup(
            kind=group.kind,
            name=group.name,
            hash=_digest(repr(sorted(hashes.items())).encode()),
            num_tensors=len(hashes),
            num_zero=norms.count(0.0),
            l2=math.sqrt(math.fsum(norm * norm for norm in norms)),
            tensors=hashes if self._num_entries <= _MAX_ENTRIES else {},
        )

    def _hash_and_norm(self, x: Tensor) -> tuple[int, float]:
        local = local_part(x)
        version, address = version_of(x), local.data_ptr()
        known = self._hashed.get(x)
        if known is not None and known[:2] == (version, address):
            return known[2]
        row = summarize(local)
        found = (hash_in(row), math.sqrt(float(row[columns.SUM_SQUARES])))
        if self._is_large:
            self._hashed[x] = (version, address, found)
        return found


def _names_of(models: list[tuple[str, _Kind, nn.Module]]) -> dict[int, str]:
    """Return the names of parameters, by id."""
    return {id(p): name for _, _, module in models for name, p in module.named_parameters()}


def _is_named(key: Any, names: set[str]) -> bool:
    """Say whether a key is the name of a parameter, perhaps with the prefix of a wrapper."""
    parts = key.split(".") if isinstance(key, str) else []
    return any(".".join(parts[start:]) in names for start in range(min(len(parts), _MAX_DEPTH)))


def _has_values(x: Tensor) -> bool:
    is_plain = not nn.parameter.is_lazy(x) and not x.is_meta and x.layout is torch.strided and not x.is_nested
    return is_plain and not x.is_complex() and not has_no_memory(x)


def _shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in module.parameters() if not nn.parameter.is_lazy(p)]


def _num_updates(optimizer: Optimizer) -> int | None:
    """Return the largest number of steps that an optimizer has counted in its state."""
    states = [state for state in optimizer.state.values() if isinstance(state, dict)]
    steps = [float(state["step"]) for state in states if isinstance(state.get("step"), (int, float, Tensor))]
    return int(max(steps)) if steps else None


def _schedules(schedulers: Iterable[LRScheduler]) -> dict[str, JsonValue]:
    """Return how far each scheduler is, by its class; several of a class are numbered in the order they were made."""
    found: dict[str, JsonValue] = {}
    count: Counter[str] = Counter()
    for scheduler in schedulers:
        position = getattr(scheduler, "last_epoch", None)
        if isinstance(position, int):
            name = type(scheduler).__name__
            count[name] += 1
            found[name if count[name] == 1 else f"{name}#{count[name]}"] = position
    return found


def _generator_hashes() -> dict[str, str]:
    states = Generators.now()
    kind, keys, *rest = states.numpy
    devices = {f"device{n}": _digest(bytes(x.cpu().numpy())) for n, x in enumerate(states.devices)}
    return {
        "torch": _digest(bytes(states.torch_cpu.numpy())),
        **devices,
        "numpy": _digest(keys.tobytes(), repr((kind, rest)).encode()),
        "python": _digest(repr(states.python).encode()),
    }


def _digest(*parts: bytes) -> str:
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()
