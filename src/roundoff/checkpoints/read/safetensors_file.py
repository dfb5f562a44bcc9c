"""Reads safetensors: a JSON header with the place of every tensor, followed by their bytes, which are mapped."""

from __future__ import annotations

import json
from typing import Any

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.lazy_tensor import LazyTensor, dense_tensor

MAX_HEADER_BYTES = 100 * 2**20
"""A longer header is an error, as in the safetensors library."""

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


def is_safetensors(data: FileBytes) -> bool:
    """Return whether a file starts with the length of a header, and the header with a brace."""
    return len(data) > 9 and data.view[8] == ord("{") and data.number(0, 8, "the header") <= MAX_HEADER_BYTES


def read_safetensors(data: FileBytes) -> dict[str, Any]:
    """Return the tensors of a file by name, and its metadata under `__metadata__`."""
    length = data.number(0, 8, "the header")
    if length > MAX_HEADER_BYTES:
        raise data.broken(f"the header claims {length} bytes, more than the limit of {MAX_HEADER_BYTES},", at=0)
    text = data.at(8, length, "the header")
    try:
        header = json.loads(str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise data.broken(f"the header is not JSON ({error})", at=8) from error
    if not isinstance(header, dict):
        raise data.broken("the header is not a JSON object", at=8)
    metadata = header.pop("__metadata__", None)
    begin = 8 + length
    body = data.part(begin, len(data) - begin, "the tensors")
    tensors = {name: _tensor(name, fields, body) for name, fields in header.items()}
    return {**tensors, **({"__metadata__": metadata} if isinstance(metadata, dict) else {})}


def _tensor(name: str, fields: Any, body: FileBytes) -> LazyTensor:
    what = f"the tensor {name[:100]!r}"
    match fields:
        case {"dtype": str() as dtype, "shape": list() as shape, "data_offsets": [int() as begin, int() as end]}:
            try:
                return dense_tensor(body.at(begin, end - begin, what), DTYPES.get(dtype, dtype), shape, what)
            except ValueError as error:
                raise body.broken(str(error), at=max(0, begin)) from error
    raise body.broken(f"{what} lacks a dtype, a shape or its place", at=0)
