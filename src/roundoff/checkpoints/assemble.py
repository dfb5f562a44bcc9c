"""Makes a `Checkpoint` of what a reader found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.checkpoints.checkpoint import Checkpoint, Entry, StoredTensor
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.naming import is_contained, model_names, role_of
from roundoff.checkpoints.tree import take_apart


def assemble(tree: Any, data: FileBytes, *, format: str, path: Path | None = None) -> Checkpoint:
    """Name what a tree of dicts, lists and tensors holds; a `CheckpointError` if two tensors have one name.

    `data` is the file it stands in, for complaints; `path` is what was opened, if that is another.
    """
    leaves = take_apart(tree, data)
    names = model_names(leaves.tensors)
    has_container = any(map(is_contained, leaves.tensors))
    stored: dict[str, StoredTensor] = {}
    for keys, tensor in leaves.tensors.items():
        name = names[keys]
        if name in stored:
            raise data.broken(f"two tensors are called '{name}'")
        role = role_of(keys, tensor, has_container=has_container)
        entry = Entry(name=name, shape=tensor.shape, dtype=tensor.dtype, role=role)
        stored[name] = StoredTensor(entry=entry, read=tensor.read)
    return Checkpoint(path=path or data.path, format=format, tensors=stored.values(), settings=leaves.settings)
