"""One call of an op, with its arguments under the names its schema gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roundoff.torch_private import OpOverload


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The schema of an overload, read once: torch builds it again each time it is requested."""

    op: OpOverload
    name: str  # the bare name: aten._foreach_add_.List is `add`
    names: tuple[str, ...]
    defaults: dict[str, Any]
    written: tuple[str, ...]  # in the order of the schema
    numbers: frozenset[str]  # arguments that are factors or summands, not sizes and dimensions
    views: frozenset[int]  # places of results that are views of an argument
    is_foreach: bool
    is_pointwise: bool
    is_out: bool

    @classmethod
    def of(cls, op: OpOverload) -> Signature:
        """Read the schema and tags of `op`."""
        schema, tags, called = op._schema, op.tags, op.overloadpacket.__name__
        is_foreach = called.startswith("_foreach_")
        name = called.removeprefix("_foreach_")
        if schema.is_mutable and name.endswith("_"):
            name = name[:-1]
        return cls(
            op=op,
            name=name,
            names=tuple(argument.name for argument in schema.arguments),
            defaults={a.name: a.default_value for a in schema.arguments if a.has_default_value()},
            written=tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write),
            numbers=frozenset(a.name for a in schema.arguments if str(a.type) in _NUMBERS),
            views=frozenset(i for i, r in enumerate(schema.returns) if r.alias_info and not r.alias_info.is_write),
            is_foreach=is_foreach,
            is_pointwise=torch.Tag.pointwise in tags or (is_foreach and name not in _FOREACH_REDUCTIONS),
            is_out=any(a.is_out for a in schema.arguments),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """An op and the arguments it is called with."""

    signature: Signature
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def get(self, name: str) -> Any:
        """Return the argument called `name`, or its default, or None where the op has none."""
        if name in self.kwargs:
            return self.kwargs[name]
        names = self.signature.names
        place = names.index(name) if name in names else len(names)
        return self.args[place] if place < len(self.args) else self.signature.defaults.get(name)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield the arguments that were passed, with their names."""
        yield from zip(self.signature.names, self.args, strict=False)
        yield from self.kwargs.items()

    def tensors(self) -> list[Tensor]:
        """Return every tensor among the arguments, those in lists included."""
        return [tensor for _, value in self.items() for tensor in list_tensors(value)]

    def change(self, change: Callable[[str, Any], Any]) -> OpCall:
        """Return the call with every argument replaced by `change(name, argument)`."""
        return OpCall(
            signature=self.signature,
            args=tuple(change(name, value) for name, value in zip(self.signature.names, self.args, strict=False)),
            kwargs={name: change(name, value) for name, value in self.kwargs.items()},
        )

    def change_tensors(self, change: Callable[[Tensor], Tensor]) -> OpCall:
        """Return the call with every tensor replaced, those in lists included."""
        return self.change(lambda _, value: replace_tensors(value, change))

    def run(self) -> list[Tensor]:
        """Run the op and return the tensors it computes, in order; those it wrote to if it returns nothing."""
        result = self.signature.op(*self.args, **self.kwargs)
        if self.signature.views and isinstance(result, tuple):
            result = [entry for place, entry in enumerate(result) if place not in self.signature.views]
        if result is None:
            return [tensor for name in self.signature.written for tensor in list_tensors(self.get(name))]
        return list_tensors(result)


def list_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in `value`, which may be one, a list, or something else."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in list_tensors(part)]
    return []


def replace_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Replace the tensors in `value`, which may be one, a list, or something else."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [replace_tensors(part, change) for part in value]
    return value


_NUMBERS = {"number", "Optional[number]", "List[number]"}
_FOREACH_REDUCTIONS = {"norm", "max", "powsum"}

PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward"})
"""Bare names of the ops that take most of a step's time; all of them accumulate in fp32 or wider."""
