"""Thrift's compact protocol, in which a Parquet file describes itself: structs are dicts by the number of a field.

What is read may come from anyone: no value takes more memory than some hundred times its bytes, and whatever does not
follow the protocol is a `ValueError` or an `IndexError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Struct: TypeAlias = dict[int, Any]

_TRUE, _FALSE, _I8, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 5, 6, 7, 8, 9, 10, 12
_INTEGERS = (4, _I32, _I64)
_SIZES = {_TRUE: 1, _FALSE: 1, _I8: 1, _DOUBLE: 8, _BINARY: 0}
"""Bytes of other values, of which none matters here: inside a list a truth value takes one."""
_MAX_DEPTH = 12


class I64(int):
    """A number whose field is declared with 64 bits; others have 32."""


def encode(fields: Mapping[int, Any]) -> bytes:
    """Return a struct; its fields must be in order.

    >>> encode({1: 3, 4: b"ab"}).hex()
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
        return encode(value)
    if kind == _BINARY:
        return encode_varint(len(value)) + bytes(value)
    if kind == _LIST:
        of = _kind(value[0])
        header = bytes([len(value) << 4 | of]) if len(value) < 15 else bytes([0xF0 | of]) + encode_varint(len(value))
        return header + b"".join(_encode_value(each, of) for each in value)
    return encode_varint(value << 1 if value >= 0 else ~value << 1 | 1)


def decode(data: bytes, place: int = 0, *, depth: int = 0) -> tuple[Struct, int]:
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
        return decode(data, place, depth=depth + 1)
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
