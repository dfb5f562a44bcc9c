"""Reads MindSpore's `.ckpt`: a protobuf of tagged tensors, of which large ones are split into slices."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from roundoff.checkpoints.checkpoint import NUM_BYTES, LazyTensor, dense_tensor, join_parts, read_flat
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.tensor_header import parse_shape

if TYPE_CHECKING:
    from torch import Tensor

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5


def read_fields(data: FileBytes, *, limit: int) -> Iterator[tuple[int, int | FileBytes]]:
    """Yield every field of a protobuf message without a schema: its number, and an integer or a part of the file.

    A message with more than `limit` fields is an error.
    """
    position = 0
    num_fields = 0
    while position < len(data):
        num_fields += 1
        if num_fields > limit:
            raise data.error(f"the protobuf has more than {limit} fields where few are expected", at=position)
        begin = position
        key, position = read_varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            count, position = read_varint(data, position)
            yield number, count
        elif kind in (BYTES, FIXED_64, FIXED_32):
            length, position = (
                read_varint(data, position) if kind == BYTES else ({FIXED_64: 8, FIXED_32: 4}[kind], position)
            )
            yield number, data.part(position, length, f"field {number} of the protobuf")
            position += length
        else:
            raise data.error(f"the protobuf has a field of the unknown kind {kind}", at=begin)


def read_varint(data: FileBytes, position: int) -> tuple[int, int]:
    """Read a varint; return it and the position after it."""
    value = 0
    for place in range(10):
        byte = data.at(position + place, 1, "a number of the protobuf")[0]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, position + place + 1
    raise data.error("the protobuf has an endless number", at=position)


DTYPES = {
    "Float64": "float64",
    "Float32": "float32",
    "Float16": "float16",
    "BFloat16": "bfloat16",
    "Float8E4M3FN": "float8_e4m3fn",
    "Float8E5M2": "float8_e5m2",
    "Complex64": "complex64",
    "Complex128": "complex128",
    "Int64": "int64",
    "Int32": "int32",
    "Int16": "int16",
    "Int8": "int8",
    "UInt64": "uint64",
    "UInt32": "uint32",
    "UInt16": "uint16",
    "UInt8": "uint8",
    "Bool": "bool",
}
TEXT = "str"

MAX_VALUES = 300_000
_VALUE_BYTES = 2000
"""What a value takes in memory, with the tensor that is made of it."""
MAX_FIELDS = 100
"""Fields of one tensor: its dimensions, its type, its content."""

CHECKSUM, CHECKSUM_BYTES = b"crc_num", 17
"""What may follow the protobuf; it is not checked."""


def read_mindspore(data: FileBytes) -> dict[str, Any]:
    """Return the tensors and strings of a checkpoint by their tags.

    The fields: Checkpoint { repeated Value value = 1; }, Value { string tag = 1; Tensor tensor = 2; },
    Tensor { repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3; }.
    """
    found: dict[str, list[_Slice]] = {}
    if data.end(CHECKSUM_BYTES).startswith(CHECKSUM):
        data = data.part(0, len(data) - CHECKSUM_BYTES, "the protobuf")
    for number, value in read_fields(data, limit=MAX_VALUES):
        if number != 1 or not isinstance(value, FileBytes):
            raise data.error(f"it is not a checkpoint of MindSpore: it has a field {number}", at=0)
        data.spend(_VALUE_BYTES)
        tag, piece = _value(value)
        found.setdefault(tag, []).append(piece)
    return {tag: _join_slices(tag, slices) for tag, slices in found.items()}


class _Slice:
    """One tensor of the protobuf: a whole parameter, or the next slice of one."""

    def __init__(self, data: FileBytes) -> None:
        self.data = data
        self.shape: list[int] = []
        self.type = ""
        self.content = FileBytes(data.path, memoryview(b""), budget=data.budget)
        for number, field in read_fields(data, limit=MAX_FIELDS):
            match number, field:
                case (1, int() as size):
                    self.shape.append(size)
                case (1, FileBytes() as packed):
                    self.shape += _read_packed(packed)
                case (2, FileBytes() as name):
                    self.type = str(name.beginning(40), "utf-8", "replace")
                case (3, FileBytes() as content):
                    self.content = content


def _read_packed(data: FileBytes) -> list[int]:
    sizes, position = [], 0
    while position < len(data):
        size, position = read_varint(data, position)
        data.spend(40)
        sizes.append(size)
    return sizes


def _value(value: FileBytes) -> tuple[str, _Slice]:
    tag, piece = None, None
    for number, field in read_fields(value, limit=MAX_FIELDS):
        match number, field:
            case (1, FileBytes() as name):
                tag = str(bytes(name), "utf-8", "replace")
                value.spend(sys.getsizeof(tag))
            case (2, FileBytes() as tensor):
                piece = _Slice(tensor)
    if tag is None or piece is None:
        raise value.error("a value has no tag, or no tensor,", at=0)
    return tag, piece


def _join_slices(tag: str, slices: list[_Slice]) -> LazyTensor | str:
    """Join the slices of a tensor; each of them states the shape."""
    first = slices[0]
    if first.type == TEXT:
        return str(bytes(first.content), "utf-32-le", "replace")
    dtype = DTYPES.get(first.type, first.type)
    try:
        if len(slices) == 1:
            return dense_tensor(first.content, dtype, first.shape, f"the tensor {tag[:100]!r}")
        return _join_tensor_slices(f"the tensor {tag[:100]!r}", slices, dtype)
    except ValueError as error:
        raise first.data.error(str(error), at=0) from error


def _join_tensor_slices(what: str, slices: list[_Slice], dtype: str) -> LazyTensor:
    shape = parse_shape(slices[0].shape, what)
    if dtype not in NUM_BYTES or any(
        (piece.shape, piece.type) != (slices[0].shape, slices[0].type) for piece in slices
    ):
        raise ValueError(f"{what} has slices that do not match")
    parts = [piece.content for piece in slices]
    num_bytes = sum(map(len, parts))
    if num_bytes != math.prod(shape) * NUM_BYTES[dtype] or any(len(part) % NUM_BYTES[dtype] for part in parts):
        raise ValueError(f"{what} of shape {list(shape)} and dtype {dtype} has slices of {num_bytes} bytes")

    def read() -> Tensor:
        return join_parts([read_flat(part, dtype) for part in parts], shape)

    return LazyTensor(shape=shape, dtype=dtype, read=read)
