"""How Parquet packs the values of a page; what does not hold as many as it should is a `ValueError`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roundoff.runs.files.thrift import decode_signed, decode_varint, encode_varint

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
