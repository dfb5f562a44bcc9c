"""Reads safetensors: a JSON header with the place of every tensor, followed by their bytes."""

from __future__ import annotations

from typing import Any

from roundoff.checkpoints.checkpoint import TENSOR_BYTES, LazyTensor, dense_tensor
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.tensor_header import MAX_HEADER_BYTES, TENSOR_DTYPES, TensorEntry, parse_entries


def is_safetensors(data: FileBytes) -> bool:
    """Return whether a file starts with the length of a header, and the header with a brace."""
    return len(data) > 9 and data.beginning(9)[8:] == b"{" and data.number(0, 8, "the header") <= MAX_HEADER_BYTES


def read_safetensors(data: FileBytes) -> dict[str, Any]:
    """Return the tensors of a file by name, and its metadata under `__metadata__`."""
    length = data.number(0, 8, "the header")
    if length > MAX_HEADER_BYTES:
        raise data.error(f"the header claims {length} bytes, more than the limit of {MAX_HEADER_BYTES},", at=0)
    header = data.json(8, length, "the header")
    data.spend(TENSOR_BYTES * len(header) if isinstance(header, dict) else 0)
    try:
        entries, metadata = parse_entries(header, start=8 + length, file_size=len(data))
    except ValueError as error:
        raise data.error(str(error), at=8) from error
    tensors = {name: _tensor(data, entry) for name, entry in entries.items()}
    return {**tensors, **({"__metadata__": metadata} if metadata else {})}


def _tensor(data: FileBytes, entry: TensorEntry) -> LazyTensor:
    content = data.part(entry.begin, entry.end - entry.begin, "a tensor")
    return dense_tensor(content, TENSOR_DTYPES[entry.dtype].torch, entry.shape)
