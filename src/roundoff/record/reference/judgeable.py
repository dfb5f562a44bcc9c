"""Which ops have a result that is worth running again."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch._ops import OpOverload


def has_something_to_judge(op: Any) -> bool:
    """Say whether an op computes numbers that those of a more exact run can be compared with."""
    if not computes_numbers(op):
        return False
    name = op.overloadpacket.__name__
    return not (_JUMPING.match(name) or _SOLVING.match(name) or op._overloadname.endswith("_mode"))


def computes_numbers(op: Any) -> bool:
    """Say whether an op computes numbers from numbers, the same ones every time, and may run a second time.

    Random ops are left alone, except those that draw numbers only for a `dropout_p` that is not 0.
    """
    if not isinstance(op, OpOverload) or op.is_view or op.namespace in _FOREIGN:
        return False
    name = op.overloadpacket.__name__
    if name in _CONSTANT or torch.Tag.inplace_view in op.tags or name.startswith("new_") or name.endswith("_like"):
        return False
    takes_dropout = any(argument.name == "dropout_p" for argument in op._schema.arguments)
    return torch.Tag.nondeterministic_seeded not in op.tags or takes_dropout


# fmt: off
_FOREIGN = frozenset({
    "_c10d_functional", "_dtensor", "c10d", "c10d_functional", "fsdp", "inductor", "prim", "profiler", "rpc",
    "streams", "symm_mem",
})
"""Namespaces of ops that must not run twice, or that compute nothing."""

_CONSTANT = frozenset({
    "_amp_update_scale_", "_conj", "_neg_view", "_reshape_alias", "_unsafe_view", "alias", "detach", "empty",
    "empty_strided", "fill", "fill_", "lift", "lift_fresh", "record_stream", "resize_", "set_", "zero", "zero_",
})
# fmt: on

_JUMPING = re.compile(r"floor_divide|remainder|nextafter|nan_to_num|grid_sampler|_?fake_quantize|_fused_moving_avg")
"""Functions that jump, where a number inside is off by a rounding or with the format; so does `div` with a mode."""
_SOLVING = re.compile(
    r"_?linalg_(?!vector_norm)|_?lu_|.*(cholesky|(?<!w)eig|svd|qrf|ormqr|triangular_solve|lstsq)"  # not weight, gelu_
)
"""Decompositions and inverses: how far apart two good ones may be depends on the matrix."""
