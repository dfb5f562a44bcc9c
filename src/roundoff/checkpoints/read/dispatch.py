"""Opens a checkpoint of any framework, recognised by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.checkpoints.checkpoint import TENSOR_BYTES, Checkpoint, LazyTensor, dense_tensor
from roundoff.checkpoints.file_bytes import FileBytes, cannot_read
from roundoff.checkpoints.read.assembly import assemble
from roundoff.checkpoints.read.flax import is_flax, read_flax
from roundoff.checkpoints.read.keras import is_keras_archive, read_keras, read_keras_archive
from roundoff.checkpoints.read.mindspore import read_mindspore
from roundoff.checkpoints.read.numpy_files import read_npz, read_paddle
from roundoff.checkpoints.read.torch_distributed import METADATA, read_torch_distributed
from roundoff.checkpoints.read.torch_files import LEGACY_MAGIC, pickle_member, read_torch_legacy, read_torch_zip
from roundoff.checkpoints.read.zip_archive import LOCAL, ZipArchive
from roundoff.tensor_header import MAX_HEADER_BYTES, TENSOR_DTYPES, TensorEntry, parse_entries

MAX_INDEX_BYTES = 64 * 2**20
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE_FILES = ("model.safetensors", "pytorch_model.bin")
HDF5 = b"\x89HDF\r\n\x1a\n"
KNOWN = "files of PyTorch, safetensors, numpy (.npz), MindSpore, Paddle, Keras and Flax"


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Open a checkpoint, recognised by its content, not its suffix; raises a `CheckpointError` if it is none.

    A folder is a checkpoint of torch.distributed or of Hugging Face. Nothing in a file is executed, and memory use is
    bounded by its size. A truncated or broken file raises an error here, or when the broken tensor is read.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    data = FileBytes.of_file(path)
    is_json = data.beginning(64).lstrip()[:1] == b"{"  # as the index of a sharded checkpoint is
    tree, format = _read_sharded(data) if is_json and not is_safetensors(data) else _read_file(data)
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


def _read_file(data: FileBytes) -> tuple[Any, str]:
    """Return the contents of a file as a tree, and its format."""
    start = data.beginning(512)
    if start.startswith(LOCAL):
        return _read_zip(data)
    if start.startswith(HDF5):
        return read_keras(data), "keras"
    if start.startswith(LEGACY_MAGIC):
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
        raise data.error(
            "it is a tar archive of PyTorch before 0.2 (convert it with torch.load and torch.save) or of NeMo"
        )
    raise data.error(f"it starts with {start[:8]!r}, unlike all {KNOWN}")


def _read_zip(data: FileBytes) -> tuple[Any, str]:
    archive = ZipArchive(data)
    if pickle_member(archive) is not None:
        return read_torch_zip(data, archive), "torch-zip"
    if is_keras_archive(archive):
        return read_keras_archive(data, archive), "keras"
    if any(name.endswith(".npy") for name in archive):
        return read_npz(data, archive), "npz"
    raise data.error("it is a zip without data.pkl (PyTorch), model.weights.h5 (Keras) or arrays (numpy)")


def _read_sharded(data: FileBytes) -> tuple[dict[str, Any], str]:
    """Return the tensors in the shards that an index of Hugging Face names, and the format of the shards."""
    shards: dict[str, dict[Any, Any]] = {}
    formats: list[str] = []
    found: dict[str, Any] = {}
    for name, file in _weight_map(data).items():
        if file not in shards:
            tree, format = _read_file(FileBytes.of_file(data.neighbour(file), budget=data.budget))
            shards[file] = tree if isinstance(tree, dict) else {}
            formats.append(format)
        if not isinstance(tensor := shards[file].get(name), LazyTensor):
            raise data.error(f"'{file}' does not have the tensor {name[:100]!r}")
        found[name] = tensor
    if len(set(formats)) != 1:
        raise data.error(f"its files have {len(set(formats))} different formats")
    return found, formats[0]


def _weight_map(data: FileBytes) -> dict[str, str]:
    if len(data) > MAX_INDEX_BYTES:
        raise data.error(f"its index of {len(data)} bytes is too large")
    match data.json(0, len(data), "it"):
        case {"weight_map": dict() as files} if all(isinstance(file, str) for file in files.values()):
            return files
    raise data.error("it is JSON, but not the index of a sharded checkpoint: it has no weight_map", at=0)


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
