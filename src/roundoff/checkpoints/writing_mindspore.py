"""Writes MindSpore's `.ckpt`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from roundoff.checkpoints.checkpoint import StoredTensor
from roundoff.checkpoints.mindspore import DTYPES
from roundoff.errors import CheckpointError

# Checkpoint { repeated Value value = 1; }, Value { string tag = 1; Tensor tensor = 2; }
# Tensor { repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3; }
VALUE, TAG, TENSOR, DIMENSIONS, TYPE, CONTENT = 1, 1, 2, 1, 2, 3
SLICE_BYTES = 512 << 20
"""MindSpore divides what is larger: a protobuf holds no more than 2 GB."""
NAMES = {torch_name: name for name, torch_name in DTYPES.items()}


def write_mindspore(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Write every tensor as one value, or as slices of the same tag."""
    with path.open("wb") as file:
        for stored in tensors:
            if stored.entry.dtype not in NAMES:
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
    """Return everything of a value that stands before its content."""
    dimensions = b"".join(_varint(DIMENSIONS << 3) + _varint(size) for size in stored.entry.shape)
    tensor = dimensions + _field(TYPE, NAMES[stored.entry.dtype].encode()) + _begin(CONTENT, num_bytes)
    value = _field(TAG, stored.entry.name.encode()) + _begin(TENSOR, len(tensor) + num_bytes)
    return _begin(VALUE, len(value) + len(tensor) + num_bytes) + value + tensor


def _field(number: int, content: bytes) -> bytes:
    return _begin(number, len(content)) + content


def _begin(number: int, num_bytes: int) -> bytes:
    return _varint(number << 3 | 2) + _varint(num_bytes)


def _varint(number: int) -> bytes:
    """Write a number in groups of seven bits, the lowest first.

    >>> _varint(300).hex()
    'ac02'
    """
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
