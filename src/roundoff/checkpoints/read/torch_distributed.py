"""Reads checkpoints of torch.distributed: a folder with `.metadata`, and files with the tensor chunks of each rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundoff.checkpoints.checkpoint import NUM_BYTES, LazyTensor
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.pickle_machine import unpickle
from roundoff.checkpoints.read.pickled_objects import PickledObject
from roundoff.checkpoints.read.torch_files import DtypeName, find_torch_global, read_torch_zip
from roundoff.tensor_header import parse_shape

if TYPE_CHECKING:
    from torch import Tensor

METADATA = ".metadata"
MAX_INSTRUCTIONS = 20_000_000
"""The pickle that describes all chunks of all ranks may be long."""
MAX_SETTING_BYTES = 2**20
MAX_SETTINGS_BYTES = 2**24
"""Settings in files of their own are ignored beyond this size, each and in total."""

MAX_DEPTH = 20

Offsets = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """A box of a tensor, and the part of a file that contains it, which is a torch file itself."""

    offsets: Offsets
    sizes: tuple[int, ...]
    data: FileBytes

    def read(self, dtype: str) -> Tensor:
        tensor = read_torch_zip(self.data)
        if not isinstance(tensor, LazyTensor) or (tensor.shape, tensor.dtype) != (self.sizes, dtype):
            raise self.data.error(f"it has no chunk of shape {list(self.sizes)} and dtype {dtype}", at=0)
        return tensor.read()


def read_torch_distributed(folder: Path) -> tuple[dict[str, Any], FileBytes]:
    """Return the tensors and settings of a folder by name, and the file that describes them."""
    metadata = FileBytes.of_file(folder / METADATA)
    tree, _ = unpickle(metadata, globals=find_torch_global, limit=MAX_INSTRUCTIONS)
    described = tree.attribute("state_dict_metadata") if isinstance(tree, PickledObject) else None
    places = tree.attribute("storage_data") if isinstance(tree, PickledObject) else None
    if not isinstance(described, dict) or not isinstance(places, dict):
        raise metadata.error("it does not describe a checkpoint")
    try:
        parts = _ShardParts(metadata, places)
        values = {name: _value(name, value, parts) for name, value in described.items()}
    except ValueError as error:
        raise metadata.error(str(error)) from error
    return _restore_nesting(values, tree.attribute("planner_data")), metadata


def _restore_nesting(values: dict[str, Any], paths: Any) -> dict[Any, Any]:
    """Restore the nesting of dicts, as far as the metadata describes it."""
    nested: dict[Any, Any] = {}
    for name, value in values.items():
        *folders, last = _path(name, paths)
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
            if not isinstance(place, dict):
                place, last = nested, name
                break
        place[last if last not in place else name] = value
    return nested


def _path(name: str, paths: Any) -> tuple[str | int, ...]:
    path = paths.get(name) if isinstance(paths, dict) else None
    if isinstance(path, tuple) and 0 < len(path) < MAX_DEPTH and all(isinstance(key, str | int) for key in path):
        return path
    return (name,)


class _ShardParts:
    """The file and position of every part, by name and offset; each file is opened once."""

    def __init__(self, metadata: FileBytes, places: dict[Any, Any]) -> None:
        self._metadata = metadata
        self._files: dict[str, FileBytes] = {}
        self._num_setting_bytes = 0
        self._places: dict[tuple[str, Offsets | None], PickledObject] = {}
        for index, place in places.items():
            if not isinstance(index, PickledObject) or not isinstance(place, PickledObject):
                raise ValueError("the places of its tensors are missing")
            name, offset = index.attribute("fqn"), index.attribute("offset")
            if not isinstance(name, str) or not (offset is None or isinstance(offset, tuple)):
                raise ValueError("the places of its tensors are missing")
            self._places[name, None if offset is None else parse_shape(offset, "an offset")] = place

    def find(self, name: str, offset: Offsets | None) -> FileBytes:
        place = self._places.get((name, offset))
        fields = ("relative_path", "offset", "length", "transform_descriptors")
        match tuple(place.attribute(field) for field in fields) if place else ():
            case (str() as file, int() as begin, int() as length, None | [] | ()):
                return self._file(file).part(begin, length, f"a part of {name[:100]!r}")
            case (str(), int(), int(), _):
                raise ValueError(f"{name[:100]!r} is compressed, which is not supported")
        raise ValueError(f"the place of a part of {name[:100]!r} is missing")

    def setting(self, name: str) -> Any:
        data = self.find(name, None)
        self._num_setting_bytes += len(data)
        if len(data) > MAX_SETTING_BYTES or self._num_setting_bytes > MAX_SETTINGS_BYTES:
            return f"<{len(data)} bytes>"
        return read_torch_zip(data)

    def _file(self, name: str) -> FileBytes:
        if name not in self._files:
            self._files[name] = FileBytes.of_file(self._metadata.neighbour(name), budget=self._metadata.budget)
        return self._files[name]


def _value(name: Any, described: Any, parts: _ShardParts) -> Any:
    if not isinstance(name, str) or not isinstance(described, PickledObject):
        raise ValueError("it describes something without a name")
    size, chunks = described.attribute("size"), described.attribute("chunks")
    if size is None and chunks is None:
        return parts.setting(name)
    properties = described.attribute("properties")
    match properties.state if isinstance(properties, PickledObject) else None, size, chunks:
        case ((DtypeName(name=dtype), *_) | {"dtype": DtypeName(name=dtype)}, tuple(), list()):
            return _tensor(name, dtype, parse_shape(size), [_chunk(name, dtype, chunk, parts) for chunk in chunks])
    raise ValueError(f"{name[:100]!r} is not described")


def _chunk(name: str, dtype: str, described: Any, parts: _ShardParts) -> _Chunk:
    offsets, sizes = (
        (described.attribute("offsets"), described.attribute("sizes"))
        if isinstance(described, PickledObject)
        else (None, None)
    )
    if not isinstance(offsets, tuple) or not isinstance(sizes, tuple):
        raise ValueError(f"a chunk of {name[:100]!r} has no place")
    chunk = _Chunk(offsets=parse_shape(offsets), sizes=parse_shape(sizes), data=parts.find(name, parse_shape(offsets)))
    if math.prod(chunk.sizes) * NUM_BYTES[dtype] > len(chunk.data):
        raise ValueError(f"a chunk of {name[:100]!r} of shape {list(chunk.sizes)} has {len(chunk.data)} bytes")
    return chunk


def _tensor(name: str, dtype: str, shape: tuple[int, ...], chunks: list[_Chunk]) -> LazyTensor:
    for chunk in chunks:
        if len(chunk.offsets) != len(shape) or len(chunk.sizes) != len(shape):
            raise ValueError(f"a chunk of {name[:100]!r} has another number of dimensions")
        if any(begin + size > whole for begin, size, whole in zip(chunk.offsets, chunk.sizes, shape, strict=True)):
            raise ValueError(f"a chunk of {name[:100]!r} exceeds its shape {list(shape)}")
    if (there := sum(math.prod(chunk.sizes) for chunk in chunks)) != math.prod(shape):
        raise ValueError(f"the chunks of {name[:100]!r} hold {there} elements of {math.prod(shape)}")
    return LazyTensor(shape=shape, dtype=dtype, read=_reader(dtype, shape, chunks))


def _reader(dtype: str, shape: tuple[int, ...], chunks: list[_Chunk]) -> Callable[[], Tensor]:
    def read() -> Tensor:
        if len(chunks) == 1:
            return chunks[0].read(dtype)
        import torch

        whole = torch.zeros(shape, dtype=getattr(torch, dtype))
        for chunk in chunks:
            box = tuple(slice(begin, begin + size) for begin, size in zip(chunk.offsets, chunk.sizes, strict=True))
            whole[box] = chunk.read(dtype)
        return whole

    return read
