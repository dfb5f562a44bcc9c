"""How Parquet packs the values of a page, and the structs by which a file describes itself (Thrift's compact protocol).

A struct is a dict by the number of a field. What is read may come from anyone: no value takes more memory than some
hundred times its bytes, and whatever does not follow the protocol is a `ValueError` or an `IndexError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Struct: TypeAlias = dict[int, Any]

_TRUE, _FALSE, _I8, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 5, 6, 7, 8, 9, 10, 12
_INTEGERS = (4, _I32, _I64)
_SIZES = {_TRUE: 1, _FALSE: 1, _I8: 1, _DOUBLE: 8, _BINARY: 0}
"""Bytes of other values, of which none matters here: inside a list a truth value takes one."""
_MAX_DEPTH = 12


class I64(int):
    """A number whose field is declared with 64 bits; others have 32."""


def encode_struct(fields: Mapping[int, Any]) -> bytes:
    """Return a struct; its fields must be in order.

    >>> encode_struct({1: 3, 4: b"ab"}).hex()
    '15063802616200'
    """
    parts, before = [], 0
    for number, value in fields.items():
        kind = _kind(value)
        parts.append(bytes([(number - before) << 4 | kind]))
        if kind not in (_TRUE, _FALSE):
            parts.append(_encode_value(value, kind))
        before = number
    return b"".join(parts) + b"\0"


def encode_varint(number: int) -> bytes:
    """Return seven bits per byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def _kind(value: object) -> int:
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int):
        return _I64 if isinstance(value, I64) else _I32
    return _BINARY if isinstance(value, bytes) else _LIST if isinstance(value, list) else _STRUCT


def _encode_value(value: Any, kind: int) -> bytes:
    if kind == _STRUCT:
        return encode_struct(value)
    if kind == _BINARY:
        return encode_varint(len(value)) + bytes(value)
    if kind == _LIST:
        of = _kind(value[0])
        header = bytes([len(value) << 4 | of]) if len(value) < 15 else bytes([0xF0 | of]) + encode_varint(len(value))
        return header + b"".join(_encode_value(each, of) for each in value)
    return encode_varint(value << 1 if value >= 0 else ~value << 1 | 1)


def decode_struct(data: bytes, place: int = 0, *, depth: int = 0) -> tuple[Struct, int]:
    """Return the struct that begins at a place, and where it ends."""
    if depth > _MAX_DEPTH:
        raise ValueError("its metadata is nested too deeply")
    found: Struct = {}
    number = 0
    while header := data[place]:
        place += 1
        if header >> 4:
            number += header >> 4
        else:
            number, place = decode_signed(data, place)
        kind = header & 0xF
        if kind in (_TRUE, _FALSE):
            found[number] = kind == _TRUE
        else:
            found[number], place = _decode_value(data, place, kind, depth)
    return found, place + 1


def decode_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a number without a sign, of at most 64 bits, and where it ends."""
    number = shift = 0
    while (byte := data[place]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        place += 1
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
    return (number | byte << shift) & 0xFFFF_FFFF_FFFF_FFFF, place + 1


def decode_signed(data: bytes, place: int) -> tuple[int, int]:
    """Return a number with a sign, and where it ends."""
    if (number := data[place]) < 0x80:  # as most are
        place += 1
    else:
        number, place = decode_varint(data, place)
    return number >> 1 ^ -(number & 1), place


def _decode_value(data: bytes, place: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        return decode_signed(data, place)
    if kind == _STRUCT:
        return decode_struct(data, place, depth=depth + 1)
    if kind in (_LIST, _SET):
        of, size = data[place] & 0xF, data[place] >> 4
        size, place = (size, place + 1) if size < 15 else decode_varint(data, place + 1)
        if size > len(data) - place or depth > _MAX_DEPTH:
            raise ValueError("its metadata is cut short")
        values = []
        for _ in range(size):
            value, place = _decode_value(data, place, of, depth + 1)
            values.append(value)
        return values, place
    if kind not in _SIZES:
        raise ValueError(f"its metadata holds a value of unknown kind {kind}")
    size, place = decode_varint(data, place) if kind == _BINARY else (_SIZES[kind], place)
    if place + size > len(data):
        raise ValueError("its metadata is cut short")
    return data[place : place + size], place + size


Array: TypeAlias = npt.NDArray[Any]

MAX_TEXT_BYTES = 40_000
"""A longer name is refused: four bytes for each of 10,000 characters."""

_MAX_BLOCK = 1 << 16


def pack_codes(codes: Array, width: int) -> bytes:
    """Return numbers of `width` bits each, as one run."""
    num_groups = -(-len(codes) // 8)
    padded = np.zeros(num_groups * 8, dtype="<u4")
    padded[: len(codes)] = codes
    bits = np.unpackbits(padded.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little", count=width)
    return encode_varint(num_groups << 1 | 1) + np.packbits(bits, bitorder="little").tobytes()


def unpack_codes(data: bytes, width: int, num: int) -> Array:
    """Return `num` numbers of `width` bits each, in runs of either one number or packed ones."""
    codes = np.zeros(num, dtype=np.int64)
    if width == 0:
        return codes
    if width > 32:
        raise ValueError(f"its codes have {width} bits")
    num_bytes, filled, place = -(-width // 8), 0, 0
    packed: list[bytes] = []
    runs: list[tuple[int, int]] = []
    while filled < num:
        header, begin = decode_varint(data, place)
        place = begin + ((header >> 1) * width if header & 1 else num_bytes)
        count = min((header >> 1) * (8 if header & 1 else 1), num - filled)
        if not count or place > len(data):
            raise ValueError("a page is cut short")
        if header & 1:
            packed.append(data[begin:place])
            runs.append((filled, count))
        else:
            codes[filled : filled + count] = int.from_bytes(data[begin:place], "little")
        filled += count
    values, begin = _unpack(np.frombuffer(b"".join(packed), dtype=np.uint8), width), 0
    for content, (place, count) in zip(packed, runs, strict=True):
        codes[place : place + count] = values[begin : begin + count]
        begin += len(content) * 8 // width
    return codes


def unpack_differences(data: bytes, num: int) -> Array:
    """Return the integers of a page that keeps the difference of each to the one before; modulo 2**64."""
    block_size, place = decode_varint(data, 0)
    num_parts, place = decode_varint(data, place)
    count, place = decode_varint(data, place)
    first, place = decode_signed(data, place)
    if not (0 < num_parts <= block_size <= _MAX_BLOCK) or block_size % (num_parts * 32) or count != num:
        raise ValueError("the blocks of a page are damaged")
    size = block_size // num_parts
    parts = [(first % 2**64, 0, 0)]  # smallest difference, bits, place; the first one is not used
    while (num_left := num - 1 - (len(parts) - 1) * size) > 0:
        smallest, place = decode_signed(data, place)
        widths = data[place : place + num_parts]
        place += num_parts
        for width in widths[: -(-num_left // size)]:
            parts.append((smallest % 2**64, width, place))
            place += size * width // 8
        if place > len(data) or max(widths) > 64:
            raise ValueError("a page is cut short")
    smallest_of, widths_of, places = np.array(parts, dtype=np.uint64).T
    differences = np.repeat(smallest_of[:, None], size, axis=1)
    content = np.frombuffer(data, dtype=np.uint8)
    for bits in set(widths_of.tolist()) - {0}:
        mine = np.flatnonzero(widths_of == bits)
        found = content[places[mine].astype(np.int64)[:, None] + np.arange(size * bits // 8)]
        differences[mine] += _unpack(found.ravel(), bits).reshape(-1, size)
    return np.cumsum(differences.ravel()[size - 1 :][:num], dtype=np.uint64)


def split_bytes(values: Array) -> bytes:
    """Return the first byte of each value, then the second of each, and so on."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.itemsize).T.tobytes()


def join_bytes(data: bytes, dtype: np.dtype[Any], num: int) -> Array:
    """Return the values whose bytes were split."""
    streams = np.frombuffer(data, dtype=np.uint8, count=num * dtype.itemsize)
    return np.ascontiguousarray(streams.reshape(dtype.itemsize, num).T).view(dtype).reshape(num)


def pack_texts(texts: Sequence[str]) -> bytes:
    """Return each text after its length."""
    encoded = [text.encode() for text in texts]
    return b"".join(len(each).to_bytes(4, "little") + each for each in encoded)


def unpack_texts(data: bytes, num: int) -> list[str]:
    """Return the texts of a page."""
    found, place = [], 0
    for _ in range(num):
        begin = place + 4
        size = int.from_bytes(data[place:begin], "little")
        place = begin + size
        if size > MAX_TEXT_BYTES:
            raise ValueError(f"a name has {size} bytes")
        if place > len(data):
            raise ValueError("a page is cut short")
        found.append(data[begin:place].decode())
    return found


def _unpack(packed: npt.NDArray[np.uint8], width: int) -> Array:
    """Return all numbers of `width` bits that the bytes hold."""
    bits = np.unpackbits(packed, bitorder="little").reshape(-1, width)
    size = next(size for size in (1, 2, 4, 8) if width <= 8 * size)
    padded = np.zeros((len(bits), 8 * size), dtype=np.uint8)
    padded[:, :width] = bits
    return np.packbits(padded, axis=1, bitorder="little").view(f"<u{size}").reshape(-1)
