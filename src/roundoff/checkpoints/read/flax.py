"""Reads Flax's msgpack: nested dicts of arrays, of which large ones are split into chunks."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from roundoff.checkpoints.checkpoint import TENSOR_BYTES, LazyTensor, dense_tensor, join_parts
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.pickled_objects import TORCH_NAMES
from roundoff.tensor_header import parse_shape

if TYPE_CHECKING:
    from torch import Tensor

MAX_DEPTH = 60
MAX_VALUES = 5_000_000
_VALUE_BYTES = 80
"""What a value takes in memory, with its place in a list or dict."""

Extension = Callable[[int, FileBytes], Any]

FLOATS = {0xCA: ">f", 0xCB: ">d"}
UNSIGNED = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
SIGNED = {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
LISTS = {0xDC: 2, 0xDD: 4}
MAPS = {0xDE: 2, 0xDF: 4}
EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def read_msgpack(data: FileBytes, *, extension: Extension) -> Any:
    """Return the value in a file; `extension` decodes extension types from their number and bytes."""
    reader = _Reader(data, extension)
    value = reader.value(0)
    if reader.position != len(data):
        raise data.error("there is data after the end of the msgpack", at=reader.position)
    return value


class _Reader:
    def __init__(self, data: FileBytes, extension: Extension) -> None:
        self.position = 0
        self._data = data
        self._extension = extension
        self._num_values = 0

    def value(self, depth: int) -> Any:
        begin = self.position
        self._num_values += 1
        if depth > MAX_DEPTH or self._num_values > MAX_VALUES:
            raise self._data.error("the msgpack has too many or too deeply nested values,", at=begin)
        self._data.spend(_VALUE_BYTES)
        code = self._take(1)[0]
        if code < 0x80:
            return code
        if code < 0x90:
            return self._map(code & 0x0F, depth)
        if code < 0xA0:
            return self._list(code & 0x0F, depth)
        if code < 0xC0:
            return self._text(code & 0x1F)
        if code >= 0xE0:
            return code - 0x100
        return self._long(code, depth, begin)

    def _long(self, code: int, depth: int, begin: int) -> Any:
        if code in CONSTANTS:
            return CONSTANTS[code]
        if code in FLOATS:
            return struct.unpack(FLOATS[code], self._take(4 if code == 0xCA else 8))[0]
        if code in UNSIGNED:
            return self._count(UNSIGNED[code])
        if code in SIGNED:
            return int.from_bytes(self._take(SIGNED[code]), "big", signed=True)
        if code in TEXTS:
            return self._text(self._count(TEXTS[code]))
        if code in BYTES:
            return self._part(self._count(BYTES[code]))
        if code in LISTS:
            return self._list(self._count(LISTS[code]), depth)
        if code in MAPS:
            return self._map(self._count(MAPS[code]), depth)
        if code in EXTENSIONS or code in FIXED_EXTENSIONS:
            return self._extension_value(FIXED_EXTENSIONS.get(code) or self._count(EXTENSIONS[code]))
        raise self._data.error(f"the msgpack has the unknown code {code:#04x}", at=begin)

    def _take(self, length: int) -> memoryview:
        taken = self._data.at(self.position, length, "the msgpack")
        self.position += length
        return taken

    def _part(self, length: int) -> FileBytes:
        part = self._data.part(self.position, length, "the msgpack")
        self._data.spend(sys.getsizeof(part))
        self.position += length
        return part

    def _count(self, num_bytes: int) -> int:
        return int.from_bytes(self._take(num_bytes), "big")

    def _text(self, length: int) -> str:
        text = str(self._take(length), "utf-8", "replace")
        self._data.spend(sys.getsizeof(text))
        return text

    def _list(self, length: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(length)]

    def _map(self, length: int, depth: int) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for _ in range(length):
            begin = self.position
            key = self.value(depth + 1)
            if not isinstance(key, str | int):
                raise self._data.error("the msgpack has a key that is not a string", at=begin)
            made[key] = self.value(depth + 1)
        return made

    def _extension_value(self, length: int) -> Any:
        kind = int.from_bytes(self._take(1), "big", signed=True)
        return self._extension(kind, self._part(length))


NDARRAY, COMPLEX, SCALAR = 1, 2, 3
"""The extension types of Flax."""
CHUNKED = "__msgpack_chunked_array__"


def is_flax(data: FileBytes) -> bool:
    """Return whether a file starts with a map whose first key is a string."""
    start = data.beginning(6)
    header = {0xDE: 3, 0xDF: 5}.get(start[0], 1 if 0x81 <= start[0] <= 0x8F else len(start))
    return len(start) > header and (0xA0 <= start[header] < 0xC0 or start[header] in TEXTS)


def read_flax(data: FileBytes) -> dict[Any, Any]:
    """Return the nested dict, with a `LazyTensor` for each array."""
    tree = read_msgpack(data, extension=_read_extension)
    if not isinstance(tree, dict):
        raise data.error("it is not a dict", at=0)
    return {name: _join_chunks(value, data) for name, value in tree.items()}


def _read_extension(kind: int, data: FileBytes) -> Any:
    if kind not in (NDARRAY, COMPLEX, SCALAR):
        raise data.error(f"the msgpack has the unknown extension {kind}", at=0)
    inner = read_msgpack(data, extension=_nothing_inside)
    match inner:
        case [float() | int() as real, float() | int() as imaginary] if kind == COMPLEX:
            return complex(real, imaginary)
        case [list() as shape, str() as dtype, FileBytes() as content] if kind != COMPLEX:
            try:
                data.spend(TENSOR_BYTES)
                tensor = dense_tensor(content, TORCH_NAMES.get(dtype, dtype), shape, "an array")
                return tensor.read().item() if kind == SCALAR else tensor
            except (ValueError, RuntimeError) as error:
                raise data.error(str(error), at=0) from error
    raise data.error("the msgpack has an invalid array", at=0)


def _nothing_inside(kind: int, data: FileBytes) -> Any:
    raise data.error("the msgpack has an extension inside another", at=0)


def _join_chunks(value: Any, data: FileBytes) -> Any:
    """Join chunked arrays anywhere in the tree, whose depth the msgpack reader has limited."""
    if not isinstance(value, dict):
        return value
    if CHUNKED not in value:
        return {name: _join_chunks(item, data) for name, item in value.items()}
    shape = _in_order(value.get("shape"))
    chunks = [chunk for chunk in _in_order(value.get("chunks")) if isinstance(chunk, LazyTensor)]
    try:
        return _join_array(parse_shape(shape, "a chunked array"), chunks)
    except ValueError as error:
        raise data.error(str(error)) from error


def _in_order(value: Any) -> list[Any]:
    """Return the values under '0', '1', ..., as Flax writes lists."""
    if isinstance(value, list):
        return value
    return [value[str(place)] for place in range(len(value)) if str(place) in value] if isinstance(value, dict) else []


def _join_array(shape: tuple[int, ...], chunks: list[LazyTensor]) -> LazyTensor:
    if len({chunk.dtype for chunk in chunks}) != 1:
        raise ValueError("a chunked array has no chunks, or chunks of different dtypes")
    if (there := sum(math.prod(chunk.shape) for chunk in chunks)) != math.prod(shape):
        raise ValueError(f"a chunked array of shape {list(shape)} has chunks of {there} elements")

    def read() -> Tensor:
        return join_parts([chunk.read() for chunk in chunks], shape)

    return LazyTensor(shape=shape, dtype=chunks[0].dtype, read=read)
