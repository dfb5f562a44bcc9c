"""Opens a checkpoint of any framework, told by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.checkpoints.assemble import assemble
from roundoff.checkpoints.checkpoint import Checkpoint
from roundoff.checkpoints.file_bytes import FileBytes, cannot_read
from roundoff.checkpoints.flax import is_flax, read_flax
from roundoff.checkpoints.keras import is_keras_archive, read_keras, read_keras_archive
from roundoff.checkpoints.mindspore import read_mindspore
from roundoff.checkpoints.npz import read_npz
from roundoff.checkpoints.paddle import read_paddle
from roundoff.checkpoints.safetensors_file import is_safetensors, read_safetensors
from roundoff.checkpoints.sharded import INDEXES, SINGLE_FILES, is_index, read_sharded
from roundoff.checkpoints.torch_distributed import METADATA, read_torch_distributed
from roundoff.checkpoints.torch_legacy import MAGIC, read_torch_legacy
from roundoff.checkpoints.torch_zip import pickle_member, read_torch_zip
from roundoff.checkpoints.zip_archive import LOCAL, ZipArchive

HDF5 = b"\x89HDF\r\n\x1a\n"
KNOWN = "files of PyTorch, safetensors, numpy (.npz), MindSpore, Paddle, Keras and Flax"


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Open a checkpoint by its content, whatever its suffix says; a `CheckpointError` if it is none.

    A folder is one of torch.distributed, or of Hugging Face. Nothing in a file is executed, and no more memory is taken
    than its size allows. A file that is cut off or broken is refused here, or where the broken tensor is asked for.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    data = FileBytes.of_file(path)
    tree, format = _read_sharded_too(data)
    return assemble(tree, data, format=format)


def _read_folder(folder: Path) -> Checkpoint:
    if (folder / METADATA).exists():
        tree, data = read_torch_distributed(folder)
        return assemble(tree, data, format="torch-distributed", path=folder)
    for name in (*INDEXES, *SINGLE_FILES):
        if (folder / name).is_file():
            return read_checkpoint(folder / name)
    raise cannot_read(
        folder, f"it is a folder without {METADATA}, {', '.join(INDEXES)} or {' or '.join(SINGLE_FILES)}."
    )


def _read_sharded_too(data: FileBytes) -> tuple[Any, str]:
    return read_sharded(data, _read_file) if is_index(data) and not is_safetensors(data) else _read_file(data)


def _read_file(data: FileBytes) -> tuple[Any, str]:
    """Return what a file holds as a tree, and its format."""
    start = bytes(data.view[:512])
    if start.startswith(LOCAL):
        return _read_zip(data)
    if start.startswith(HDF5):
        return read_keras(data), "keras"
    if start.startswith(MAGIC):
        return read_torch_legacy(data), "torch-legacy"
    if is_safetensors(data):
        return read_safetensors(data), "safetensors"
    if start[0] == 0x80 and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return read_paddle(data), "paddle"
    if start[0] == 0x0A:
        return read_mindspore(data), "mindspore"
    if is_flax(data):
        return read_flax(data), "flax"
    if start[257:262] == b"ustar":
        raise data.broken(
            "it is a tar, as PyTorch wrote before 0.2 (torch.load, then torch.save renews it) or NeMo does"
        )
    raise data.broken(f"it begins with {start[:8]!r}, and none of {KNOWN} does")


def _read_zip(data: FileBytes) -> tuple[Any, str]:
    archive = ZipArchive(data)
    if pickle_member(archive) is not None:
        return read_torch_zip(data, archive), "torch-zip"
    if is_keras_archive(archive):
        return read_keras_archive(data, archive), "keras"
    if any(name.endswith(".npy") for name in archive):
        return read_npz(data, archive), "npz"
    raise data.broken("it is a zip that holds neither data.pkl (PyTorch), model.weights.h5 (Keras) nor arrays (numpy)")
