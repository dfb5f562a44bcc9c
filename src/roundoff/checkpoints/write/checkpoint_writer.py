"""Writes checkpoints of PyTorch, numpy, safetensors and MindSpore, and verifies what it wrote."""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from roundoff.checkpoints.checkpoint import NUM_BYTES, StoredTensor
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.checkpoints.read.mindspore import DTYPES
from roundoff.errors import CheckpointError
from roundoff.files import NewFile
from roundoff.progress import counting
from roundoff.tensor_header import TENSOR_DTYPES

# Checkpoint { repeated Value value = 1; }, Value { string tag = 1; Tensor tensor = 2; }
# Tensor { repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3; }
VALUE, TAG, TENSOR, DIMENSIONS, TYPE, CONTENT = 1, 1, 2, 1, 2, 3
SLICE_BYTES = 512 << 20
"""MindSpore splits larger tensors, because a protobuf has at most 2 GB."""
MINDSPORE_DTYPES = {torch_name: name for name, torch_name in DTYPES.items()}


def write_mindspore(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Write MindSpore's `.ckpt`: every tensor as one value, or as slices with the same tag."""
    with path.open("wb") as file:
        for stored in counting(tensors, "tensor"):
            if stored.dtype not in MINDSPORE_DTYPES:
                raise CheckpointError.explain(
                    f"'{stored.name}' cannot be written.", why=f"MindSpore has no {stored.dtype}."
                )
            content = _bits(stored.read()).numpy().data
            for begin in range(0, max(1, len(content)), SLICE_BYTES):
                part = content[begin : begin + SLICE_BYTES]
                file.write(_head(stored, len(part)))
                file.write(part)


def _head(stored: StoredTensor, num_bytes: int) -> bytes:
    """Return the bytes of a value before its content."""
    dimensions = b"".join(_varint(DIMENSIONS << 3) + _varint(size) for size in stored.shape)
    tensor = dimensions + _field(TYPE, MINDSPORE_DTYPES[stored.dtype].encode()) + _begin(CONTENT, num_bytes)
    value = _field(TAG, stored.name.encode()) + _begin(TENSOR, len(tensor) + num_bytes)
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


NEW_DTYPES = ("C64", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
"""Older versions of the safetensors library cannot read these, so they are not written."""
SAFETENSORS_DTYPES = {dtype.torch: name for name, dtype in TENSOR_DTYPES.items() if name not in NEW_DTYPES}
ALIGNMENT = 8


def write_safetensors(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Write safetensors: the header with the place of every tensor, then the tensors one by one."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    # The widest dtypes first, so that every tensor is aligned.
    ordered = sorted(tensors, key=lambda stored: -_width(stored))
    for stored in ordered:
        end = position + _width(stored) * math.prod(stored.shape)
        kind = SAFETENSORS_DTYPES[stored.dtype]
        header[stored.name] = {"dtype": kind, "shape": stored.shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for stored in counting(ordered, "tensor"):
            file.write(_bits(stored.read()).numpy().data)


def _width(stored: StoredTensor) -> int:
    if stored.dtype not in SAFETENSORS_DTYPES:
        raise CheckpointError.explain(f"'{stored.name}' cannot be written.", why=f"safetensors has no {stored.dtype}.")
    return NUM_BYTES[stored.dtype]


def write_npz(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Write numpy's `.npz`; the caller has widened bfloat16, which numpy does not have."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for stored in counting(tensors, "tensor"):
            with archive.open(f"{stored.name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, stored.read().contiguous().numpy(), allow_pickle=False)


_STATE = re.compile(r"optimizer\.state\.(?P<number>\d+)\.(?P<slot>\w+)")


def write_torch(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Write a PyTorch state dict; with optimizer state, {"model": ..., "optimizer": {"state": ...}}.

    All tensors are in memory at once, because PyTorch writes them together.
    """
    model: dict[str, Any] = {}
    state: dict[int, dict[str, Any]] = {}
    for stored in counting(tensors, "tensor"):
        # A strided tensor would be saved with all of the memory that it lies in.
        tensor = stored.read().clone(memory_format=torch.contiguous_format)
        if found := _STATE.fullmatch(stored.name):
            state.setdefault(int(found["number"]), {})[found["slot"]] = tensor
        else:
            model[stored.name] = tensor
    torch.save({"model": model, "optimizer": {"state": state}} if state else model, path)


Target: TypeAlias = Literal["torch", "safetensors", "npz", "mindspore"]
TARGETS: tuple[Target, ...] = get_args(Target)
SUFFIXES: dict[str, Target] = {
    ".pth": "torch",
    ".pt": "torch",
    ".bin": "torch",
    ".safetensors": "safetensors",
    ".npz": "npz",
    ".ckpt": "mindspore",
}
WRITERS: dict[Target, Callable[[Path, Sequence[StoredTensor]], None]] = {
    "torch": write_torch,
    "safetensors": write_safetensors,
    "npz": write_npz,
    "mindspore": write_mindspore,
}


def target_of(path: Path) -> Target:
    """Return the target format of a file from its suffix; raises a `CheckpointError` if it is unknown."""
    if path.suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise CheckpointError.explain(
            f"The suffix of '{path}' does not determine a format.",
            why=f"known suffixes are {known}.",
            fix=f"use one of them, or --to {'|'.join(TARGETS)}",
        )
    return SUFFIXES[path.suffix]


def write_checkpoint(path: Path, tensors: Sequence[StoredTensor], *, target: Target, replace: bool = False) -> None:
    """Write tensors in the given order; the file is either complete and verified, or does not exist.

    One tensor is in memory at a time, except in PyTorch's format.

    Raises:
        CheckpointError: The file exists, cannot be written, or does not read back as written.
    """
    if path.exists() and not replace:
        raise CheckpointError.explain(f"'{path}' already exists.", fix="choose another name, or add --force.")
    try:
        with NewFile(path, is_private=False) as file:
            WRITERS[target](file.temporary, tensors)
            _verify(file.temporary, tensors)
    except OSError as error:
        raise CheckpointError.explain(f"'{path}' cannot be written.", why=str(error)) from error


def _verify(path: Path, tensors: Sequence[StoredTensor]) -> None:
    with read_checkpoint(path) as written:
        names = [stored.name for stored in tensors]
        if sorted(written.entries) != sorted(names):
            different = sorted(set(written.entries) ^ set(names))
            raise _not_as_meant(path, f"'{different[0]}' has another name" if different else "a name is missing")
        for stored in counting(tensors, "reading back tensor"):
            if not _same(written.tensor(stored.name), stored.read()):
                raise _not_as_meant(path, f"'{stored.name}' has other values")


def _same(first: Tensor, second: Tensor) -> bool:
    """Return whether shape, dtype and bits are equal; NaN equals itself."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(_bits(first), _bits(second))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _not_as_meant(path: Path, why: str) -> CheckpointError:
    return CheckpointError.explain(
        f"'{path.name}' did not read back as written, and was deleted.",
        why=f"{why}.",
        fix="try another format with --to, and report this.",
    )
