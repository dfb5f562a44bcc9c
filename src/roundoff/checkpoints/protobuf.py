"""The wire format of protocol buffers: fields by number, without a schema."""

from __future__ import annotations

from collections.abc import Iterator

from roundoff.checkpoints.file_bytes import FileBytes

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5


def read_fields(data: FileBytes, *, limit: int) -> Iterator[tuple[int, int | FileBytes]]:
    """Yield every field of a message: its number, and a count or the part of the file it holds.

    A message of more than `limit` fields is refused.
    """
    position = 0
    num_fields = 0
    while position < len(data):
        num_fields += 1
        if num_fields > limit:
            raise data.broken(f"the protobuf has more than {limit} fields where few belong", at=position)
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
            raise data.broken(f"the protobuf has a field of the unknown kind {kind}", at=begin)


def read_varint(data: FileBytes, position: int) -> tuple[int, int]:
    """Read a number of 7 bits a byte; return it and where it ends."""
    value = 0
    for place in range(10):
        byte = data.at(position + place, 1, "a number of the protobuf")[0]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, position + place + 1
    raise data.broken("the protobuf has a number without an end", at=position)
