"""Flax's msgpack: nested dicts of arrays, where large arrays are divided into chunks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.lazy_tensor import LazyTensor, checked_shape, dense_tensor
from roundoff.checkpoints.msgpack import TEXTS, read_msgpack
from roundoff.checkpoints.pickled_arrays import TORCH_NAMES

NDARRAY, COMPLEX, SCALAR = 1, 2, 3
"""The extension types of Flax."""
CHUNKED = "__msgpack_chunked_array__"


def is_flax(data: FileBytes) -> bool:
    """Say whether a file begins with a map whose first key is a text."""
    start = bytes(data.view[:6])
    header = {0xDE: 3, 0xDF: 5}.get(start[0], 1 if 0x81 <= start[0] <= 0x8F else len(start))
    return len(start) > header and (0xA0 <= start[header] < 0xC0 or start[header] in TEXTS)


def read_flax(data: FileBytes) -> dict[Any, Any]:
    """Return the nested dict, with a `LazyTensor` for each array."""
    tree = read_msgpack(data, extension=_extended)
    if not isinstance(tree, dict):
        raise data.broken("it holds no dict", at=0)
    return {name: _joined(value, data) for name, value in tree.items()}


def _extended(kind: int, data: FileBytes) -> Any:
    if kind not in (NDARRAY, COMPLEX, SCALAR):
        raise data.broken(f"the msgpack has the unknown extension {kind}", at=0)
    inner = read_msgpack(data, extension=_nothing_inside)
    match inner:
        case [float() | int() as real, float() | int() as imaginary] if kind == COMPLEX:
            return complex(real, imaginary)
        case [list() as shape, str() as dtype, memoryview() as content] if kind != COMPLEX:
            try:
                tensor = dense_tensor(content, TORCH_NAMES.get(dtype, dtype), shape, "an array")
                return tensor.read().item() if kind == SCALAR else tensor
            except (ValueError, RuntimeError) as error:
                raise data.broken(str(error), at=0) from error
    raise data.broken("the msgpack has an array that is none", at=0)


def _nothing_inside(kind: int, data: FileBytes) -> Any:
    raise data.broken("the msgpack has an extension inside of another", at=0)


def _joined(value: Any, data: FileBytes) -> Any:
    """Put chunks together, wherever in the tree they are; it is no deeper than msgpack was read."""
    if not isinstance(value, dict):
        return value
    if CHUNKED not in value:
        return {name: _joined(item, data) for name, item in value.items()}
    shape = _in_order(value.get("shape"))
    chunks = [chunk for chunk in _in_order(value.get("chunks")) if isinstance(chunk, LazyTensor)]
    try:
        return _whole(checked_shape(shape, "a divided array"), chunks)
    except ValueError as error:
        raise data.broken(str(error)) from error


def _in_order(value: Any) -> list[Any]:
    """Return the values under '0', '1', ..., as Flax writes lists."""
    if isinstance(value, list):
        return value
    return [value[str(place)] for place in range(len(value)) if str(place) in value] if isinstance(value, dict) else []


def _whole(shape: tuple[int, ...], chunks: list[LazyTensor]) -> LazyTensor:
    if len({chunk.dtype for chunk in chunks}) != 1:
        raise ValueError("a divided array has no chunks, or chunks of several dtypes")
    if (there := sum(math.prod(chunk.shape) for chunk in chunks)) != math.prod(shape):
        raise ValueError(f"a divided array of shape {list(shape)} has chunks of {there} elements")

    def read() -> Tensor:
        return torch.cat([chunk.read().reshape(-1) for chunk in chunks]).reshape(shape)

    return LazyTensor(shape=shape, dtype=chunks[0].dtype, read=read)
