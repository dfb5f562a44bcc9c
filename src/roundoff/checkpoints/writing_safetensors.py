"""Writes safetensors, one tensor after the other."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from roundoff.checkpoints.checkpoint import StoredTensor
from roundoff.errors import CheckpointError

NAMES = {
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
    """Write the header, which says where every tensor is, then the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    # The widest first: then every tensor begins at a multiple of its own width.
    ordered = sorted(tensors, key=lambda stored: -_width(stored))
    for stored in ordered:
        end = position + _width(stored) * math.prod(stored.entry.shape)
        kind = NAMES[stored.entry.dtype]
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
    if stored.entry.dtype not in NAMES:
        raise CheckpointError.explain(
            f"'{stored.entry.name}' cannot be written.", why=f"safetensors has no {stored.entry.dtype}."
        )
    dtype: torch.dtype = getattr(torch, stored.entry.dtype)
    return dtype.itemsize
