"""The arguments of a call, noted so that the call can be made again: copies of tensors, not the tensors themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from roundoff.record.torch_private import hidden_from_modes

_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, type(...), slice)


class Result:
    """Stands for a tensor that an earlier call of the same step returned."""

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
        self.step = step
        self.number = number


class Container:
    """Stands for a container that is not a plain list, tuple or dict: a named tuple, a dataclass, a mapping."""

    __slots__ = ("make", "parts")

    def __init__(self, make: Callable[[Any], Any], parts: Any) -> None:
        self.make = make
        self.parts = parts


class ArgumentNotes:
    """Knows, during one step, which tensor is the result of which call, and which are external."""

    def __init__(self, is_state: Callable[[Tensor], bool]) -> None:
        self.external: list[ExternalTensor] = []
        """The external tensors, in the order in which they were first used."""
        self._is_state = is_state
        self.reached_steps: set[int] = set()
        """Earlier steps into whose graphs this one continues."""
        self._results: dict[int, tuple[ref[Tensor], Result]] = {}
        self._carried: dict[int, tuple[ref[Tensor], int, int]] = {}
        self._met: dict[int, tuple[ref[Tensor], int, ExternalTensor]] = {}
        self._met_before: dict[int, tuple[ref[Tensor], int, ExternalTensor]] = {}
        self._num_results = 0

    def new_step(self, ended: int) -> None:
        """Forget the results, except those with a live graph. A tensor that is used in every step is copied once."""
        self.external, self.reached_steps = [], set()
        live = {key: (x, ended, result.number) for key, (x, result) in self._results.items()}
        self._carried = {
            key: made
            for key, made in {**self._carried, **live}.items()
            if (x := made[0]()) is not None and x.grad_fn is not None
        }
        self._results = {}
        self._met, self._met_before = {}, self._met
        self._num_results = 0

    def note(self, value: Any) -> Any:
        """Return a value with its tensors replaced by placeholders; parameters and other state stay as they are."""
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
            if x is not None and self._is_state(x) and version == _version(x)
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
        self._met = {key: met for key, met in self._met.items() if met[2] in used}

    def written(self, value: Any) -> None:
        """Note that a call that a replay makes again has written into these tensors: their copies stay valid."""
        for x in tensors_of(value):
            known = self._met.get(id(x))
            if known is not None and known[0]() is x:
                self._met[id(x)] = (known[0], _version(x), known[2])

    def _note_tensor(self, x: Tensor) -> Any:
        found = self._results.get(id(x))
        if found is not None and found[0]() is x:
            return found[1]
        if isinstance(x, nn.Parameter) or self._is_state(x):
            return x
        if x.grad_fn is not None and (made := self._carried.get(id(x))) is not None and made[0]() is x:
            self.reached_steps.add(made[1])
            self.external.append(EarlierStepTensor(x, step=made[1], number=made[2]))
            return self.external[-1]
        for met in (self._met, self._met_before):
            known = met.get(id(x))
            if known is not None and known[0]() is x and known[1] == _version(x) >= 0:
                external = known[2]
                if met is self._met_before:
                    self.external.append(external)
                break
        else:
            external = ExternalTensor(x)
            self.external.append(external)
        self._met[id(x)] = (ref(x), _version(x), external)
        return external

    def _note_other(self, value: Any) -> Any:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return Container(lambda parts: type(value)(*parts), [self.note(item) for item in value])
        if isinstance(value, Mapping) and next(tensors_of(value), None) is not None:
            return Container(lambda parts: _like(value, parts), {key: self.note(item) for key, item in value.items()})
        if (
            dataclasses.is_dataclass(value)
            and not isinstance(value, type)
            and next(tensors_of(value), None) is not None
        ):
            names = [field.name for field in dataclasses.fields(value) if field.init]
            parts = {name: self.note(getattr(value, name)) for name in names}
            return Container(lambda parts: dataclasses.replace(value, **parts), parts)
        return value


def references(value: Any) -> Iterator[Result | ExternalTensor]:
    """Yield the placeholders in a noted value."""
    if isinstance(value, (Result, ExternalTensor)):
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
    return value


def adopt_state(value: Any, known: Mapping[ExternalTensor, Tensor]) -> Any:
    """Return a noted value in which the `known` external tensors are replaced by their live originals."""
    kind = type(value)
    if kind is ExternalTensor:
        return known.get(value, value)
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


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version


def _like(value: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    try:
        return type(value)(parts)  # type: ignore[call-arg]
    except TypeError:
        return parts
