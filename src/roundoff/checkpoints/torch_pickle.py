"""Tensors out of a pickle of torch's, as descriptions over storages that lie elsewhere in the file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roundoff.checkpoints.lazy_tensor import (
    MAX_ELEMENTS,
    MAX_REPEATED_BYTES,
    NUM_BYTES,
    LazyTensor,
    checked_shape,
    view_of,
)
from roundoff.checkpoints.pickled_arrays import ARRAY_GLOBALS
from roundoff.checkpoints.pickled_objects import PLAIN_GLOBALS, Global, Known, PickledObject

STORAGE_DTYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
    "UntypedStorage": "uint8",
}
"""The classes of storages by dtype; of quantized ones the integers are read, without scale and zero point."""


@dataclass(frozen=True, slots=True)
class DtypeName:
    """A dtype that a pickle names."""

    name: str


@dataclass(slots=True, eq=False)
class Storage:
    """The memory of one or more tensors: how much, of what, and where its bytes are to be had."""

    dtype: str
    num_elements: int
    bytes: Callable[[], memoryview]

    @property
    def num_bytes(self) -> int:
        """How many bytes it must have."""
        return self.num_elements * NUM_BYTES[self.dtype]


def describe_storage(reference: Any, find: Callable[[str, int], Callable[[], memoryview]]) -> Storage:
    """Make a storage of ('storage', class, key, device, count); `find` gets its key and how many bytes it needs."""
    match reference:
        case ("storage", DtypeName(name=dtype), str() as key, _, int() as count, *_) if 0 <= count < 2**60:
            return Storage(dtype, count, find(key, count * NUM_BYTES[dtype]))
    raise ValueError("the pickle refers to something that is no storage")


def find_torch_global(module: str, name: str) -> Any:
    """Give the stand-in for what pickles of torch name; anything else is a `Global`."""
    if module in ("torch", "torch.cuda", "torch.storage") and name in STORAGE_DTYPES:
        return DtypeName(STORAGE_DTYPES[name])
    if module == "torch" and name in NUM_BYTES:
        return DtypeName(name)
    return TORCH_GLOBALS.get((module, name)) or Global(module, name)


def _tensor(arguments: tuple[Any, ...], *, dtype: str | None = None) -> LazyTensor:
    match arguments:
        case (Storage() as storage, int() as offset, tuple() as size, tuple() as stride, *_):
            return strided_tensor(storage, dtype or storage.dtype, offset, size, stride)
    raise ValueError("a tensor is made of something that is no storage")


def strided_tensor(
    storage: Storage, dtype: str, offset: int, size: tuple[Any, ...], stride: tuple[Any, ...]
) -> LazyTensor:
    """Describe the part of a storage that a tensor looks at; a `ValueError` if it looks beyond it."""
    shape = checked_shape(size)
    steps = tuple(step for step in stride if type(step) is int and 0 <= step < MAX_ELEMENTS)
    if not len(shape) == len(steps) == len(stride) or offset < 0:
        raise ValueError(f"a tensor of shape {list(shape)} has strides or an offset that it cannot have")
    available = storage.num_bytes // NUM_BYTES[dtype]
    needed = offset + 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) if all(shape) else 0
    if needed > available:
        raise ValueError(f"a tensor of shape {list(shape)} needs {needed} elements and its storage has {available}")
    if math.prod(shape) * NUM_BYTES[dtype] > max(MAX_REPEATED_BYTES, storage.num_bytes):
        raise ValueError(f"a tensor of shape {list(shape)} repeats a storage of {available} elements")

    def read() -> Tensor:
        if not all(shape):
            return torch.empty(shape, dtype=getattr(torch, dtype))
        data = storage.bytes()
        usable = len(data) // NUM_BYTES[dtype] * NUM_BYTES[dtype]
        return view_of(data[:usable], dtype).as_strided(shape, steps, offset)

    return LazyTensor(shape=shape, dtype=dtype, read=read)


def _tensor_with_dtype(arguments: tuple[Any, ...]) -> LazyTensor:
    """Make what `_rebuild_tensor_v3` makes: (storage, offset, size, stride, requires_grad, hooks, dtype, ...)."""
    match arguments:
        case (_, _, _, _, _, _, DtypeName(name=dtype), *_):
            return _tensor(arguments, dtype=dtype)
    raise ValueError("a tensor has no dtype")


def _of_first(arguments: tuple[Any, ...]) -> Any:
    """Let a parameter, or a tensor with more to it, be the tensor it is made of."""
    match arguments:
        case (LazyTensor() as tensor, *_):
            return tensor
    return PickledObject(made_by=Global("torch", "Tensor"), arguments=arguments)


def _of_type(arguments: tuple[Any, ...]) -> Any:
    """Make what `_rebuild_from_type_v2(function, type, arguments, state)` makes: the tensor, without its class."""
    match arguments:
        case (Known() as function, _, tuple() as inner, *_) if function is not OF_TYPE:
            return function.make(inner)
    return PickledObject(made_by=Global("torch", "Tensor"), arguments=arguments)


OF_TYPE = Known(_of_type)

TORCH_GLOBALS: Mapping[tuple[str, str], Any] = {
    **PLAIN_GLOBALS,
    **ARRAY_GLOBALS,
    ("torch._utils", "_rebuild_tensor"): Known(_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): Known(_tensor),
    ("torch._utils", "_rebuild_tensor_v3"): Known(_tensor_with_dtype),
    ("torch._utils", "_rebuild_qtensor"): Known(_tensor),
    ("torch_npu.utils.storage", "_rebuild_npu_tensor"): Known(_tensor),
    ("torch._utils", "_rebuild_parameter"): Known(_of_first),
    ("torch._utils", "_rebuild_parameter_with_state"): Known(_of_first),
    ("torch._tensor", "_rebuild_from_type_v2"): OF_TYPE,
    ("torch.nn.parameter", "Parameter"): Known(_of_first),
    ("torch.nn.parameter", "Buffer"): Known(_of_first),
    ("torch", "Size"): Known(lambda arguments: arguments[0] if arguments else ()),
}
