"""Reads Paddle's `.pdparams` and `.pdopt`, and other pickles of numpy arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from roundoff.checkpoints.checkpoint import LazyTensor, join_parts
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.pickle_machine import unpickle
from roundoff.checkpoints.read.pickled_objects import ARRAY_GLOBALS, PLAIN_GLOBALS, Global, PickledArray
from roundoff.tensor_header import parse_shape

if TYPE_CHECKING:
    from torch import Tensor

INTERNAL_NAMES = "StructuredToParameterName@@"
DIVIDED = "UnpackBigParamInfor@@"
"""The key under which the parts of arrays beyond 4 GB are described."""


def read_paddle(data: FileBytes) -> Any:
    """Return the pickled value, with a `LazyTensor` for each array."""
    tree, _ = unpickle(data, globals=_find_global)
    if not isinstance(tree, dict):
        return tree
    tree.pop(INTERNAL_NAMES, None)
    divided = tree.pop(DIVIDED, None)
    for name, fields in divided.items() if isinstance(divided, dict) else ():
        try:
            tree[name] = _join_parts(tree, fields)
        except ValueError as error:
            raise data.error(str(error)) from error
    return {name: _drop_internal_name(value) for name, value in tree.items()}


def _find_global(module: str, name: str) -> Any:
    return PLAIN_GLOBALS.get((module, name)) or ARRAY_GLOBALS.get((module, name)) or Global(module, name)


def _drop_internal_name(value: Any) -> Any:
    """Replace a tensor given as (internal name, array) by the array."""
    match value:
        case (str(), PickledArray() as array):
            return array
    return value


def _join_parts(tree: dict[Any, Any], fields: Any) -> LazyTensor:
    match fields:
        case {"OriginShape": list() | tuple() as original, "slices": list() | tuple() as names}:
            shape = parse_shape(original, "a chunked array")
            parts = [tree.pop(name, None) for name in names if isinstance(name, str)]
            tensors = [part.tensor for part in parts if isinstance(part, PickledArray) and part.tensor is not None]
            if len({tensor.dtype for tensor in tensors}) != 1 or len(tensors) != len(names):
                raise ValueError("a chunked array lacks a part")
            if sum(math.prod(tensor.shape) for tensor in tensors) != math.prod(shape):
                raise ValueError(f"the parts of a chunked array do not have the shape {list(shape)}")

            def read() -> Tensor:
                return join_parts([tensor.read() for tensor in tensors], shape)

            return LazyTensor(shape=shape, dtype=tensors[0].dtype, read=read)
    raise ValueError("the description of a chunked array is invalid")
