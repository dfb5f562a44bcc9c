"""Writes the files of PyTorch, numpy, safetensors and MindSpore."""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundoff.checkpoints.checkpoint import StoredTensor
from roundoff.checkpoints.read.mindspore import DTYPES
from roundoff.errors import CheckpointError

# Checkpoint { repeated Value value = 1; }, Value { string tag = 1; Tensor tensor = 2; }
# Tensor { repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3; }
VALUE, TAG, TENSOR, DIMENSIONS, TYPE, CONTENT = 1, 1, 2, 1, 2, 3
SLICE_BYTES = 512 << 20
"""MindSpore splits larger tensors, because a protobuf has at most 2 GB."""
MINDSPORE_DTYPES = {torch_name: name for name, torch_name in DTYPES.items()}


def write_mindspore(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Write MindSpore's `.ckpt`: every tensor as one value, or as slices with the same tag."""
    with path.open("wb") as file:
        for stored in tensors:
            if stored.entry.dtype not in MINDSPORE_DTYPES:
                raise CheckpointError.explain(
                    f"'{stored.entry.name}' cannot be written.", why=f"MindSpore has no {stored.entry.dtype}."
                )
            for content in _slices(stored.read()):
                head = _head(stored, len(content))
                file.write(head)
                file.write(content)


def _slices(tensor: Tensor) -> Iterator[memoryview]:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    for begin in range(0, max(1, len(content)), SLICE_BYTES):
        yield content[begin : begin + SLICE_BYTES]


def _head(stored: StoredTensor, num_bytes: int) -> bytes:
    """Return the bytes of a value before its content."""
    dimensions = b"".join(_varint(DIMENSIONS << 3) + _varint(size) for size in stored.entry.shape)
    tensor = dimensions + _field(TYPE, MINDSPORE_DTYPES[stored.entry.dtype].encode()) + _begin(CONTENT, num_bytes)
    value = _field(TAG, stored.entry.name.encode()) + _begin(TENSOR, len(tensor) + num_bytes)
    return _begin(VALUE, len(value) + len(tensor) + num_bytes) + value + tensor


def _field(number: int, content: bytes) -> bytes:
    return _begin(number, len(content)) + content


def _begin(number: int, num_bytes: int) -> bytes:
    return _varint(number << 3 | 2) + _varint(num_bytes)


def _varint(number: int) -> bytes:
    """Encode a varint: groups of seven bits, the lowest first.

    >>> _varint(300).hex()
    'ac02'
    """
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


SAFETENSORS_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
ALIGNMENT = 8


def write_safetensors(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Write safetensors: the header with the place of every tensor, then the tensors one by one."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    # The widest dtypes first, so that every tensor is aligned.
    ordered = sorted(tensors, key=lambda stored: -_width(stored))
    for stored in ordered:
        end = position + _width(stored) * math.prod(stored.entry.shape)
        kind = SAFETENSORS_DTYPES[stored.entry.dtype]
        header[stored.entry.name] = {"dtype": kind, "shape": stored.entry.shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for stored in ordered:
            file.write(stored.read().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _width(stored: StoredTensor) -> int:
    if stored.entry.dtype not in SAFETENSORS_DTYPES:
        raise CheckpointError.explain(
            f"'{stored.entry.name}' cannot be written.", why=f"safetensors has no {stored.entry.dtype}."
        )
    dtype: torch.dtype = getattr(torch, stored.entry.dtype)
    return dtype.itemsize


def write_npz(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Write numpy's `.npz`; the caller has widened bfloat16, which numpy does not have."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for stored in tensors:
            with archive.open(f"{stored.entry.name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, stored.read().contiguous().numpy(), allow_pickle=False)


_STATE = re.compile(r"optimizer\.state\.(?P<number>\d+)\.(?P<slot>\w+)")


def write_torch(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Write a PyTorch state dict; with optimizer state, {"model": ..., "optimizer": {"state": ...}}.

    All tensors are in memory at once, because PyTorch writes them together.
    """
    model: dict[str, Any] = {}
    state: dict[int, dict[str, Any]] = {}
    for stored in tensors:
        # A view of a mapped file would be saved with the whole file.
        tensor = stored.read().clone(memory_format=torch.contiguous_format)
        if found := _STATE.fullmatch(stored.entry.name):
            state.setdefault(int(found["number"]), {})[found["slot"]] = tensor
        else:
            model[stored.entry.name] = tensor
    torch.save({"model": model, "optimizer": {"state": state}} if state else model, path)
