"""What a file says about its tensors, checked before it is used: shapes, dtypes, and the header of safetensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_DIMENSIONS = 32
MAX_ELEMENTS = 2**60
MAX_HEADER_BYTES = 100 * 2**20
"""A longer header of safetensors is an error, as in the safetensors library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDtype:
    """One dtype under its three names; numpy holds the bits where it has no such number."""

    name: str
    numpy: str
    torch: str

    @property
    def num_bytes(self) -> int:
        """The size of one element."""
        return np.dtype(self.numpy).itemsize


TENSOR_DTYPES = {
    name: TensorDtype(name=name, numpy=numpy, torch=torch)
    for name, numpy, torch in (
        ("F64", "<f8", "float64"),
        ("F32", "<f4", "float32"),
        ("F16", "<f2", "float16"),
        ("BF16", "<u2", "bfloat16"),
        ("F8_E4M3", "u1", "float8_e4m3fn"),
        ("F8_E4M3FNUZ", "u1", "float8_e4m3fnuz"),
        ("F8_E5M2", "u1", "float8_e5m2"),
        ("F8_E5M2FNUZ", "u1", "float8_e5m2fnuz"),
        ("F8_E8M0", "u1", "float8_e8m0fnu"),
        ("C64", "<c8", "complex64"),
        ("I64", "<i8", "int64"),
        ("I32", "<i4", "int32"),
        ("I16", "<i2", "int16"),
        ("I8", "i1", "int8"),
        ("U64", "<u8", "uint64"),
        ("U32", "<u4", "uint32"),
        ("U16", "<u2", "uint16"),
        ("U8", "u1", "uint8"),
        ("BOOL", "?", "bool"),
    )
}
"""Every dtype that a safetensors file can hold, by the name it has there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """The place of a tensor in a file, its dtype and its shape."""

    dtype: str
    """As safetensors names it: F32, BF16, ..."""
    shape: tuple[int, ...]
    begin: int
    """Its first byte, counted from the start of the file."""
    end: int


def parse_shape(shape: Sequence[object], what: str = "a tensor") -> tuple[int, ...]:
    """Return the shape as a tuple of integers; raises a `ValueError` if it is invalid."""
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{what} claims {len(shape)} dimensions")
    sizes = tuple(size for size in shape if type(size) is int and size >= 0)
    if len(sizes) != len(shape):
        raise ValueError(f"{what} has a shape with something other than counts")
    if math.prod(max(1, size) for size in sizes) > MAX_ELEMENTS:
        raise ValueError(f"{what} claims more elements than fit into any memory")
    return sizes


def parse_entries(header: Any, *, start: int, file_size: int) -> tuple[dict[str, TensorEntry], Mapping[str, Any]]:
    """Return the tensors that the JSON header of a safetensors file describes, and its metadata.

    `start` is the first byte after the header. Raises a `ValueError` if the header does not fit the file.
    """
    metadata = (header.get("__metadata__") or {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict):
        raise ValueError("the header or its metadata is not a JSON object")
    tensors = {name: fields for name, fields in header.items() if name != "__metadata__"}
    entries = {name: _parse_entry(name, fields, start, file_size) for name, fields in tensors.items()}
    return entries, metadata


def _parse_entry(name: str, fields: Any, start: int, file_size: int) -> TensorEntry:
    what = f"the tensor {name[:100]!r}"
    match fields:
        case {"dtype": str() as dtype, "shape": list() as shape, "data_offsets": [int() as begin, int() as end]}:
            if begin < 0 or end < begin or start + end > file_size:
                left = max(0, file_size - start - begin) if begin >= 0 else 0
                raise ValueError(f"{what} claims {end - begin} bytes, but only {left} are left")
        case _:
            raise ValueError(f"{what} lacks a dtype, a shape or its place")
    sizes = parse_shape(shape, what)
    if dtype not in TENSOR_DTYPES:
        raise ValueError(f"{what} has the unknown dtype {dtype[:40]!r}")
    if (needed := math.prod(sizes) * TENSOR_DTYPES[dtype].num_bytes) != end - begin:
        raise ValueError(f"{what} of shape {list(sizes)} and dtype {dtype} needs {needed} bytes but has {end - begin}")
    return TensorEntry(dtype=dtype, shape=sizes, begin=start + begin, end=start + end)
