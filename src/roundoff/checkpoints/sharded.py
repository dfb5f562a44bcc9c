"""Hugging Face's sharded checkpoints: an index in JSON that says which file holds which tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.lazy_tensor import LazyTensor

MAX_INDEX_BYTES = 64 * 2**20
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE_FILES = ("model.safetensors", "pytorch_model.bin")

ReadShard = Callable[[FileBytes], tuple[Any, str]]


def is_index(data: FileBytes) -> bool:
    """Say whether a file could be an index: a JSON object."""
    return bytes(data.view[:64]).lstrip()[:1] == b"{"


def read_sharded(data: FileBytes, read_shard: ReadShard) -> tuple[dict[str, Any], str]:
    """Return the tensors that an index names, and the format of its shards; `read_shard` gives both for one file."""
    shards: dict[str, dict[Any, Any]] = {}
    formats: list[str] = []
    found: dict[str, Any] = {}
    for name, file in _weight_map(data).items():
        if file not in shards:
            tree, format = read_shard(FileBytes.of_file(_beside(data, file)))
            shards[file] = tree if isinstance(tree, dict) else {}
            formats.append(format)
        if not isinstance(tensor := shards[file].get(name), LazyTensor):
            raise data.broken(f"'{file}' lacks the tensor {name[:100]!r}")
        found[name] = tensor
    if len(set(formats)) != 1:
        raise data.broken(f"its files are of {len(set(formats))} formats")
    return found, formats[0]


def _weight_map(data: FileBytes) -> dict[str, str]:
    if len(data) > MAX_INDEX_BYTES:
        raise data.broken(f"an index of {len(data)} bytes is not read")
    try:
        index = json.loads(str(data.view, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise data.broken(f"it is not JSON ({error})", at=0) from error
    match index:
        case {"weight_map": dict() as files} if all(isinstance(file, str) for file in files.values()):
            return files
    raise data.broken("it is JSON, but no index of a sharded checkpoint: it has no weight_map", at=0)


def _beside(data: FileBytes, file: str) -> Path:
    if file in ("", "..") or Path(file).name != file or not file.isprintable():
        raise data.broken(f"it names the file {file[:100]!a}, which is not beside it")
    return data.path.parent / file
