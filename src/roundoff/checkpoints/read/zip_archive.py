"""Reads the members of a zip file: uncompressed ones are parts of it, compressed ones are expanded within limits."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from roundoff.checkpoints.file_bytes import FileBytes

END = b"PK\x05\x06"
END_64 = b"PK\x06\x06"
LOCATOR_64 = b"PK\x06\x07"
CENTRAL = b"PK\x01\x02"
LOCAL = b"PK\x03\x04"

STORED, DEFLATED = 0, 8
PIECE_BYTES = 2**16
MAX_MEMBERS = 300_000
MAX_UNPACKED_BYTES = 64 * 2**20
MAX_RATIO = 100
"""A compressed member may expand to 64 MB, or to a hundred times the size of the file; more is a zip bomb."""
_MEMBER_BYTES = 400
"""What the description of a member takes in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The place of a member, and its compression."""

    name: str
    method: int
    packed_bytes: int
    num_bytes: int
    header: int
    """The offset of its local header."""


class ZipArchive(Mapping[str, Member]):
    """The members of a zip file by name; 64-bit archives are supported, encrypted and split ones are not."""

    def __init__(self, data: FileBytes) -> None:
        self.data = data
        self._members: dict[str, Member] = {}
        for member in self._directory():
            data.spend(_MEMBER_BYTES + len(member.name))
            if member.name in self._members:
                raise data.error(f"the zip has two members {member.name[:100]!r}", at=member.header)
            self._members[member.name] = member

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def member_bytes(self, name: str) -> FileBytes:
        """Return the bytes of a member: a part of the file if it is not compressed, otherwise expanded in memory."""
        member = self._members[name]
        packed = self._packed_bytes(member)
        if member.method == STORED:
            return packed
        limit = max(MAX_UNPACKED_BYTES, MAX_RATIO * len(self.data))
        if member.num_bytes > limit:
            raise self.data.error(
                f"{name[:100]!r} would expand to {member.num_bytes} bytes, more than the limit of {limit},",
                at=member.header,
            )
        if member.num_bytes > MAX_UNPACKED_BYTES // 2:  # a broken one is refused before its memory is taken
            for _ in self._pieces(packed, member, member.num_bytes):
                pass
        return FileBytes(
            self.data.path,
            memoryview(self._expand(packed, member, member.num_bytes)),
            budget=self.data.budget,
        )

    def beginning(self, name: str, num_bytes: int) -> FileBytes:
        """Return at most `length` bytes from the start of a member."""
        member = self._members[name]
        packed = self._packed_bytes(member)
        length = min(num_bytes, member.num_bytes)
        if member.method == STORED:
            return packed.part(0, length, "a member")
        return FileBytes(self.data.path, memoryview(self._expand(packed, member, length)), budget=self.data.budget)

    def _packed_bytes(self, member: Member) -> FileBytes:
        header = self.data.at(member.header, 30, "a zip member")
        if header[:4] != LOCAL:
            raise self.data.error(f"the zip has no member {member.name[:100]!r}", at=member.header)
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return self.data.part(member.header + 30 + names, member.packed_bytes, f"the zip member {member.name[:100]!r}")

    def _expand(self, packed: FileBytes, member: Member, length: int) -> bytearray:
        unpacked = bytearray(length)
        place = 0
        for piece in self._pieces(packed, member, length):
            unpacked[place : place + len(piece)] = piece
            place += len(piece)
        return unpacked

    def _pieces(self, packed: FileBytes, member: Member, length: int) -> Iterator[bytes]:
        """Expand a member piece by piece; raises an error if it does not have `length` bytes."""
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        done = 0
        try:
            for begin in range(0, len(packed), PIECE_BYTES):
                rest = bytes(packed.at(begin, min(PIECE_BYTES, len(packed) - begin), "a member"))
                while rest and done < length:
                    piece = unpacker.decompress(rest, min(2**20, length - done))
                    rest = unpacker.unconsumed_tail
                    done += len(piece)
                    yield piece
                    if not piece:
                        break
        except zlib.error as error:
            raise packed.error(f"{member.name[:100]!r} cannot be expanded ({error})", at=0) from error
        if done != length:
            raise packed.error(f"{member.name[:100]!r} expands to {done} bytes, not to {length},", at=0)

    def _directory(self) -> Iterator[Member]:
        place, length, count = self._directory_place()
        directory = self.data.part(place, length, "the zip's directory")
        if count > MAX_MEMBERS:
            raise self.data.error(f"the zip claims {count} members", at=place)
        position = 0
        for _ in range(count):
            fields = directory.at(position, 46, "the zip's directory")
            if fields[:4] != CENTRAL:
                raise directory.error("the zip's directory is broken", at=position)
            name_bytes, extra_bytes, comment_bytes = (int.from_bytes(fields[i : i + 2], "little") for i in (28, 30, 32))
            names = directory.at(position + 46, name_bytes + extra_bytes, "the zip's directory")
            yield self._member(directory, position, fields, names, name_bytes)
            position += 46 + name_bytes + extra_bytes + comment_bytes

    def _member(
        self, directory: FileBytes, position: int, fields: memoryview, names: memoryview, name_bytes: int
    ) -> Member:
        name = str(names[:name_bytes], "utf-8", "replace")
        flags, method = (int.from_bytes(fields[i : i + 2], "little") for i in (8, 10))
        packed, unpacked, header = (int.from_bytes(fields[i : i + 4], "little") for i in (20, 24, 42))
        if 0xFFFFFFFF in (packed, unpacked, header):
            unpacked, packed, header = _wide(bytes(names[name_bytes:]), unpacked, packed, header)
        if flags & 1 or method not in (STORED, DEFLATED):
            how = "encrypted" if flags & 1 else f"packed by method {method}"
            raise directory.error(f"the zip member {name[:100]!r} is {how}", at=position)
        if method == STORED and packed != unpacked:
            raise directory.error(f"the zip member {name[:100]!r} has two sizes", at=position)
        return Member(name=name, method=method, packed_bytes=packed, num_bytes=unpacked, header=header)

    def _directory_place(self) -> tuple[int, int, int]:
        """Return the place of the directory, its length, and the number of its members."""
        # The end record has 22 bytes and is last, except for a comment of at most 65,535 bytes.
        tail_start = max(0, len(self.data) - 22 - 0xFFFF)
        found = self.data.end(22 + 0xFFFF).rfind(END)
        if found < 0 or tail_start + found + 22 > len(self.data):
            raise self.data.error("the zip is truncated: its directory is missing", at=len(self.data))
        end = tail_start + found
        fields = self.data.at(end, 22, "the zip's end")
        count, length, place = (int.from_bytes(fields[a:b], "little") for a, b in ((10, 12), (12, 16), (16, 20)))
        # A 64-bit archive has a second end record, and right before the first one the 20 bytes that locate it.
        if end >= 20 and self.data.at(end - 20, 4, "the zip's end") == LOCATOR_64:
            wide = self.data.number(end - 20 + 8, 8, "the zip's end")
            if self.data.at(wide, 56, "the zip's end")[:4] != END_64:
                raise self.data.error("the zip's end is broken", at=wide)
            count, length, place = (self.data.number(wide + i, 8, "the zip's end") for i in (32, 40, 48))
        return place, length, count


def _wide(extra: bytes, *values: int) -> list[int]:
    """Replace every value that does not fit into 32 bits by that of the extra field."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = (int.from_bytes(extra[position + i : position + i + 2], "little") for i in (0, 2))
        if kind == 1:
            numbers = iter(
                int.from_bytes(extra[i : i + 8], "little") for i in range(position + 4, position + 4 + length, 8)
            )
            return [next(numbers, value) if value == 0xFFFFFFFF else value for value in values]
        position += 4 + length
    return list(values)
