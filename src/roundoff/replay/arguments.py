"""The arguments of a call, noted so that the call can be made again: copies of tensors, not the tensors themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MethodType
from typing import Any
from weakref import WeakMethod, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.torch_private import hidden_from_modes, version_of

_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, type(...), slice)


class Result:
    """A placeholder for a tensor that an earlier call of the same step returned."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class ExternalTensor:
    """A copy of a tensor that no call of the step computed: a batch, a mask, something computed without gradients."""

    __slots__ = ("copy", "cuts_graph", "requires_grad")

    def __init__(self, x: Tensor) -> None:
        with hidden_from_modes(), torch.no_grad():
            self.copy = x.detach().clone()
        self.requires_grad = x.requires_grad
        self.cuts_graph = x.grad_fn is not None

    def new_copy(self) -> Tensor:
        """Return a copy for one replay, whose calls may write into it."""
        return self.copy.clone().requires_grad_(self.requires_grad)

    @property
    def num_bytes(self) -> int:
        """The size of the copy."""
        return self.copy.numel() * self.copy.element_size()


class EarlierStepTensor(ExternalTensor):
    """A tensor whose graph an earlier step built, such as a generator's output: a backward continues into that step."""

    __slots__ = ("number", "step")

    def __init__(self, x: Tensor, *, step: int, number: int) -> None:
        super().__init__(x)
        self.cuts_graph = False
        self.step = step
        self.number = number


class GeneratorState:
    """The state of a random generator of the script's own before a call drew from it."""

    __slots__ = ("device", "state")

    def __init__(self, generator: torch.Generator) -> None:
        self.device, self.state = generator.device, generator.get_state()

    def new_copy(self) -> torch.Generator:
        """Return a generator that draws the same numbers; the script's own is not touched."""
        generator = torch.Generator(self.device)
        generator.set_state(self.state)
        return generator


class NotReplayable(RuntimeError):
    """A step cannot be played again; its text says why."""


class DroppedByScript(NotReplayable):
    """The script has dropped something that the step used."""


class Live:
    """A placeholder for an object of the script, such as a model or a weight, that does not keep it alive.

    Small modules of torch's own that hold no tensors, such as a loss that is made in every step, are kept.
    """

    __slots__ = ("_kept", "_kind", "_reference")

    def __init__(self, value: Any) -> None:
        self._kept = value if _is_stateless(value) else None
        self._kind = type(value).__name__
        self._reference: Callable[[], Any] = WeakMethod(value) if isinstance(value, MethodType) else ref(value)

    @property
    def is_alive(self) -> bool:
        """Whether the script still has it."""
        return self._reference() is not None

    def get(self) -> Any:
        """Return it; `DroppedByScript` if the script has dropped it."""
        value = self._reference()
        if value is None:
            raise DroppedByScript(f"the script has dropped a {self._kind} that the step used")
        return value


def resolve(value: Any) -> Any:
    """Return the object of a `Live`, and anything else as it is."""
    return value.get() if type(value) is Live else value


def _is_stateless(value: Any) -> bool:
    if not isinstance(value, nn.Module) or not type(value).__module__.startswith("torch.nn."):
        return False
    parts = vars(value)
    return not (parts["_parameters"] or parts["_buffers"] or parts["_modules"])


class Container:
    """A placeholder for a container that is not a plain list, tuple or dict: a named tuple, a dataclass, a mapping."""

    __slots__ = ("make", "parts")

    def __init__(self, make: Callable[[Any], Any], parts: Any) -> None:
        self.make = make
        self.parts = parts


class ArgumentNotes:
    """Knows, during one step, which tensor is the result of which call, and which are external."""

    def __init__(self, is_state: Callable[[Tensor], bool]) -> None:
        self.external: list[ExternalTensor] = []
        """The external tensors, in the order in which they were first used."""
        self.live: dict[int, Live] = {}
        """What the script must still have for the step to be played again, by id."""
        self._is_state = is_state
        self.reached_steps: set[int] = set()
        """Earlier steps into whose graphs this one continues."""
        self._results: dict[int, tuple[ref[Tensor], Result]] = {}
        self._carried: dict[int, tuple[ref[Tensor], int, int]] = {}
        self._met: dict[int, tuple[ref[Tensor], int, ExternalTensor]] = {}
        self._met_before: dict[int, tuple[ref[Tensor], int, ExternalTensor]] = {}
        self._num_results = 0
        self.num_bytes = 0
        """The size of the copies that this step has made."""

    def forget(self) -> None:
        """Forget everything about the step so far; what was computed before is external from now on."""
        self.external, self.reached_steps = [], set()
        self._results, self._carried, self._met, self._met_before = {}, {}, {}, {}
        self._num_results = self.num_bytes = 0

    def new_step(self, ended: int) -> None:
        """Forget the results, except those with a live graph. A tensor that is used in every step is copied once."""
        self.external, self.live, self.reached_steps = [], {}, set()
        live = {key: (x, ended, result.number) for key, (x, result) in self._results.items()}
        self._carried = {
            key: made
            for key, made in {**self._carried, **live}.items()
            if (x := made[0]()) is not None and x.grad_fn is not None
        }
        self._results = {}
        self._met, self._met_before = {}, self._met
        self._num_results = self.num_bytes = 0

    def note(self, value: Any) -> Any:
        """Return a value with its tensors, models and optimizers replaced by placeholders."""
        if isinstance(value, Tensor):
            return self._note_tensor(value)
        if isinstance(value, _ATOMS):
            return value
        kind = type(value)
        if kind is list or kind is tuple:
            return kind([self.note(item) for item in value])
        if kind is dict:
            return {key: self.note(item) for key, item in value.items()}
        return self._note_other(value)

    def note_live(self, value: Any) -> Live:
        """Return a placeholder for something of the script's own that a snapshot holds, or that needs no copy."""
        known = self.live.get(id(value))
        if known is None or not known.is_alive:
            known = self.live[id(value)] = Live(value)
        return known

    def results(self, value: Any) -> int:
        """Number the tensors of a call's result and return how many there are."""
        count = 0
        for x in tensors_of(value):
            self._results[id(x)] = (ref(x), Result(self._num_results))
            self._num_results += 1
            count += 1
        return count

    def now_state(self) -> dict[ExternalTensor, Tensor]:
        """Return the unchanged external tensors that have become state since: a model was made of them."""
        met = ((made(), version, external) for made, version, external in self._met.values())
        return {
            external: x
            for x, version, external in met
            if x is not None and self._is_state(x) and version == version_of(x)
        }

    def live_graphs(self) -> set[int]:
        """Return the numbers of the results that are still alive and that a backward may go through."""
        live = ((reference(), result) for reference, result in self._results.values())
        return {result.number for x, result in live if x is not None and x.grad_fn is not None}

    def keep_only(self, numbers: Mapping[int, int], noted: Iterable[Any]) -> None:
        """Keep the results with these numbers, renumbered as given, and the external tensors that `noted` calls use.

        Any other tensor is external if it is used again.
        """
        self._results = {key: found for key, found in self._results.items() if found[1].number in numbers}
        used = set(references(list(noted)))
        for result in {found[1] for found in self._results.values()} | {r for r in used if isinstance(r, Result)}:
            result.number = numbers[result.number]
        self._num_results = len(numbers)
        self.external = [external for external in self.external if external in used]
        self.live = {key: live for key, live in self.live.items() if live in used}
        self._met = {key: met for key, met in self._met.items() if met[2] in used}

    def note_written(self, value: Any) -> None:
        """Note that a call that a replay makes again has written into these tensors: their copies stay valid."""
        for x in tensors_of(value):
            known = self._met.get(id(x))
            if known is not None and known[0]() is x:
                self._met[id(x)] = (known[0], version_of(x), known[2])

    def _note_tensor(self, x: Tensor) -> Any:
        found = self._results.get(id(x))
        if found is not None and found[0]() is x:
            return found[1]
        if isinstance(x, nn.Parameter) or self._is_state(x):
            return self.note_live(x)
        if x.grad_fn is not None and (made := self._carried.get(id(x))) is not None and made[0]() is x:
            self.reached_steps.add(made[1])
            self.external.append(EarlierStepTensor(x, step=made[1], number=made[2]))
            return self.external[-1]
        for met in (self._met, self._met_before):
            known = met.get(id(x))
            if known is not None and known[0]() is x and known[1] == version_of(x) >= 0:
                external = known[2]
                if met is self._met_before:
                    self.external.append(external)
                break
        else:
            external = ExternalTensor(x)
            self.external.append(external)
            self.num_bytes += external.num_bytes
        self._met[id(x)] = (ref(x), version_of(x), external)
        return external

    def _note_other(self, value: Any) -> Any:
        kind = type(value)  # not the value: what makes another one must not keep its tensors alive
        if isinstance(value, (nn.Module, Optimizer)):
            return self.note_live(value)
        if isinstance(value, torch.Generator):
            before = GeneratorState(value)
            self.num_bytes += before.state.numel()
            return before
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return Container(lambda parts: kind(*parts), [self.note(item) for item in value])
        if isinstance(value, Mapping) and next(tensors_of(value), None) is not None:
            return Container(lambda parts: _like(kind, parts), {key: self.note(item) for key, item in value.items()})
        if (
            dataclasses.is_dataclass(value)
            and not isinstance(value, type)
            and next(tensors_of(value), None) is not None
        ):
            names = [field.name for field in dataclasses.fields(value) if field.init]
            parts = {name: self.note(getattr(value, name)) for name in names}
            return Container(lambda parts: kind(**parts), parts)
        return value


def references(value: Any) -> Iterator[Result | ExternalTensor | Live]:
    """Yield the placeholders in a noted value."""
    if isinstance(value, (Result, ExternalTensor, Live)):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, Container):
        yield from references(value.parts)


def external_tensors_in(value: Any) -> Iterator[ExternalTensor]:
    """Yield the external tensors in a noted value."""
    return (found for found in references(value) if isinstance(found, ExternalTensor))


def fill_in(value: Any, results: list[Tensor], tensor_for: Callable[[ExternalTensor], Tensor]) -> Any:
    """Return a noted value with the tensors of this replay in place of the placeholders."""
    kind = type(value)
    if kind is Result:
        return results[value.number]
    if kind is ExternalTensor or kind is EarlierStepTensor:
        return tensor_for(value)
    if kind is list or kind is tuple:
        return kind([fill_in(item, results, tensor_for) for item in value])
    if kind is dict:
        return {key: fill_in(item, results, tensor_for) for key, item in value.items()}
    if kind is Container:
        return value.make(fill_in(value.parts, results, tensor_for))
    return value.new_copy() if kind is GeneratorState else resolve(value)


def adopt_state(value: Any, known: Mapping[ExternalTensor, Tensor]) -> Any:
    """Return a noted value in which the `known` external tensors are replaced by placeholders of live ones."""
    kind = type(value)
    if kind is ExternalTensor:
        return Live(known[value]) if value in known else value
    if kind is list or kind is tuple:
        return kind([adopt_state(item, known) for item in value])
    if kind is dict:
        return {key: adopt_state(item, known) for key, item in value.items()}
    if kind is Container:
        return Container(value.make, adopt_state(value.parts, known))
    return value


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value, looking into lists, tuples, mappings and dataclasses, always in the same order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name, None))


def _like(kind: Callable[[Any], Any], parts: dict[Any, Any]) -> Any:
    try:
        return kind(parts)
    except TypeError:
        return parts
