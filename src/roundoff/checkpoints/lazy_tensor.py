"""A tensor in a file: its shape and dtype, checked against its bytes, and how to read it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roundoff.checkpoints.checkpoint import Role

NUM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}
"""Every dtype that a tensor of a checkpoint can have, in torch's names, and the size of one element."""

MAX_DIMENSIONS = 32
MAX_ELEMENTS = 2**60
MAX_REPEATED_BYTES = 2**20
"""A tensor whose elements share memory (an expanded one) may be this much larger than its storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyTensor:
    """Shape and dtype of a tensor in a file; `read` returns its values, as a view of the mapped file if possible."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]
    role: Role | None = None
    """Set if the file itself states the role."""


def checked_shape(shape: Sequence[object], what: str = "a tensor") -> tuple[int, ...]:
    """Return the shape as a tuple of integers; raises a `ValueError` if it is invalid."""
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{what} claims {len(shape)} dimensions")
    sizes = tuple(size for size in shape if type(size) is int and size >= 0)
    if len(sizes) != len(shape):
        raise ValueError(f"{what} has a shape with something other than counts")
    if math.prod(max(1, size) for size in sizes) > MAX_ELEMENTS:
        raise ValueError(f"{what} claims more elements than fit into any memory")
    return sizes


def dense_tensor(data: memoryview, dtype: str, shape: Sequence[object], what: str = "a tensor") -> LazyTensor:
    """Describe a tensor whose elements fill `data` in order; raises a `ValueError` if they do not."""
    sizes = checked_shape(shape, what)
    if dtype not in NUM_BYTES:
        raise ValueError(f"{what} has the unknown dtype {dtype[:40]!r}")
    if (needed := math.prod(sizes) * NUM_BYTES[dtype]) != len(data):
        raise ValueError(f"{what} of shape {list(sizes)} and dtype {dtype} needs {needed} bytes but has {len(data)}")
    return LazyTensor(shape=sizes, dtype=dtype, read=lambda: view_of(data, dtype).reshape(sizes))


def view_of(data: memoryview, dtype: str) -> Tensor:
    """View bytes as a flat tensor; they are copied only if they are not aligned for the dtype."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    if not len(data):
        return torch.empty(0, dtype=torch_dtype)
    address = np.frombuffer(data, np.uint8).ctypes.data
    source = bytearray(data) if data.readonly or address % NUM_BYTES[dtype] else data
    return torch.frombuffer(source, dtype=torch_dtype)
