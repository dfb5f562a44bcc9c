"""What the recorder must know about each operator, read from its schema once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor

from roundoff.record.reference.op_call import list_tensors
from roundoff.torch_private import is_composite

_HOLDS_GARBAGE = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "set_"}
)
_UNDECLARED_VIEWS = frozenset(
    {
        "_unsafe_view", "_reshape_alias", "lift", "lift_fresh", "_conj", "_neg_view",
        "unsafe_split", "unsafe_split_with_sizes",
    }
)  # fmt: skip
_UNDECLARED_WRITES = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4)}
"""Running statistics: they are written to, and no schema says so."""

_SCRATCH = {"mkldnn_rnn_layer": (3,), "_cudnn_rnn": (3,), "miopen_rnn": (3,), "cudnn_batch_norm": (3,)}
"""Returns that are scratch memory for the backward; parts of it are never written."""


class OpKind(Enum):
    """Where an op leaves what it computed."""

    NOTHING = "nothing"
    """Views, garbage such as `empty`, and ops without tensors: no event."""
    RETURNED = "returned"
    MUTATED = "mutated"
    """Nothing is returned; arguments were written to (foreach, fused optimizers)."""
    COMPOSITE = "composite"
    """It is made of other ops; in inference mode, torch shows those to a mode only if the op is decomposed."""
    COLLECTIVE = "collective"
    """Arguments are written to later, by another thread or device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpInfo:
    """What the recorder must know about one operator."""

    name: str
    """`aten.addmm`: namespace and name, without the overload, so that `add.Tensor` and `add.Scalar` line up."""
    kind: OpKind
    mutated: tuple[int, ...] = ()
    """Positions of arguments that are written to."""
    views: tuple[int, ...] = ()
    """Positions of returns that have no numbers of their own: views of an argument, and scratch memory."""
    per_tensor: bool = False
    """Whether the nth tensor of the result belongs to the nth tensor of the first argument (foreach, fused)."""
    loses_versions: bool = False
    """Whether torch does not raise the version counters of written tensors when a mode sees the op."""


def describe_op(func: Any) -> OpInfo:
    """Read an operator's schema; a higher-order operator has none, so only what it returns is known."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return OpInfo(name=f"higher_order.{func.__name__}", kind=OpKind.RETURNED)
    namespace, _, bare = schema.name.partition("::")
    name = f"{namespace}.{bare}"
    if namespace in ("c10d", "_c10d_functional"):
        return OpInfo(name=name, kind=_collective_kind(namespace, bare))
    if bare in _HOLDS_GARBAGE or bare in _UNDECLARED_VIEWS:
        return OpInfo(name=name, kind=OpKind.NOTHING)
    if is_composite(func):
        return OpInfo(name=name, kind=OpKind.COMPOSITE)
    mutated = tuple(i for i, arg in enumerate(schema.arguments) if arg.alias_info and arg.alias_info.is_write)
    mutated = mutated or _UNDECLARED_WRITES.get(bare, ())
    views = tuple(i for i, ret in enumerate(schema.returns) if ret.alias_info and not ret.alias_info.is_write)
    views += _SCRATCH.get(bare, ())
    tensors = [i for i, ret in enumerate(schema.returns) if "Tensor" in str(ret.type)]
    per_tensor = _is_list(schema.arguments[:1]) and (not tensors or _is_list(schema.returns))
    if not tensors:
        kind = OpKind.MUTATED if mutated else OpKind.NOTHING
        loses_versions = bool(mutated) and bare.startswith("_foreach_")
        return OpInfo(name=name, kind=kind, mutated=mutated, per_tensor=per_tensor, loses_versions=loses_versions)
    kind = OpKind.NOTHING if len(views) == len(tensors) else OpKind.RETURNED
    return OpInfo(name=name, kind=kind, mutated=mutated, views=views, per_tensor=per_tensor)


def _is_list(arguments: Sequence[Any]) -> bool:
    return len(arguments) == 1 and str(arguments[0].type) == "List[Tensor]"


def _collective_kind(namespace: str, bare: str) -> OpKind:
    if namespace == "c10d":
        return OpKind.COLLECTIVE if bare not in ("barrier", "monitored_barrier_", "send") else OpKind.NOTHING
    return OpKind.RETURNED if bare == "wait_tensor" else OpKind.NOTHING


def computed_tensors(func: Any, info: OpInfo, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> list[Tensor]:
    """Return the tensors that the op computed, flattened: what it returned but for views, or what it wrote to."""
    if info.kind is OpKind.MUTATED:
        return written_arguments(func, info, args, kwargs)
    if info.views and isinstance(result, tuple):
        result = [entry for index, entry in enumerate(result) if index not in info.views]
    return list_tensors(result)


def written_arguments(func: Any, info: OpInfo, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that the op writes to, flattened, in the order of its schema."""
    found: list[Tensor] = []
    for position in info.mutated:
        if position < len(args):
            found.extend(list_tensors(args[position]))
        else:
            found.extend(list_tensors(kwargs.get(func._schema.arguments[position].name)))
    return found


_ONLY_WRITE = frozenset({
    "bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_", "normal_", "random_",
    "uniform_", "zero_",
})  # fmt: skip
"""Ops in place that do not read what they write to, which may be memory that was never filled."""


def read_arguments(func: Any, info: OpInfo, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that go into the op, flattened; not what only takes the result (`out=`, `x.normal_()`)."""
    written = {func._schema.arguments[position].name for position in info.mutated}
    given = args[1:] if func.overloadpacket.__name__ in _ONLY_WRITE else args
    return list_tensors([*given, *(value for name, value in kwargs.items() if name not in written)])
