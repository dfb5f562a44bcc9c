"""Writes a checkpoint under a temporary name, reads it back to verify it, and renames it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from roundoff.checkpoints.checkpoint import StoredTensor
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.checkpoints.write.file_writers import write_mindspore, write_npz, write_safetensors, write_torch
from roundoff.errors import CheckpointError

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
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        WRITERS[target](partial, tensors)
        _verify(partial, tensors)
        _sync(partial)
        os.replace(partial, path)
    except OSError as error:
        raise CheckpointError.explain(f"'{path}' cannot be written.", why=str(error)) from error
    finally:
        partial.unlink(missing_ok=True)


def _verify(path: Path, tensors: Sequence[StoredTensor]) -> None:
    with read_checkpoint(path) as written:
        names = [stored.entry.name for stored in tensors]
        if sorted(written.entries) != sorted(names):
            different = sorted(set(written.entries) ^ set(names))
            raise _not_as_meant(path, f"'{different[0]}' has another name" if different else "a name is missing")
        for stored in tensors:
            if not _same(written.tensor(stored.entry.name), stored.read()):
                raise _not_as_meant(path, f"'{stored.entry.name}' has other values")


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


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
