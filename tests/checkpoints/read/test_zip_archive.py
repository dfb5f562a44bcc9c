"""Zip files are read as `zipfile` reads them, from views of the file, and within bounds."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import pytest
import torch

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.zip_archive import LOCATOR_64, ZipArchive
from roundoff.errors import CheckpointError


def opened(data: bytes) -> ZipArchive:
    return ZipArchive(FileBytes(Path("a.zip"), memoryview(data)))


def packed(members: dict[str, bytes], *, compression: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression=compression) as archive:
        for name, content in members.items():
            with archive.open(name, "w", force_zip64=name.startswith("wide")) as member:
                member.write(content)
        archive.comment = comment
    return buffer.getvalue()


MEMBERS = {"a": b"first", "folder/ä": b"", "wide": random.Random(0).randbytes(200_000)}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_gives_what_was_packed(compression: int):
    archive = opened(packed(MEMBERS, compression=compression, comment=b"PK\x05\x06 somebody says"[4:]))
    assert list(archive) == list(MEMBERS)
    for name, content in MEMBERS.items():
        assert bytes(archive.member_bytes(name)) == content
        assert bytes(archive.beginning(name, 100)) == content[:100]


def test_what_is_not_compressed_is_not_copied():
    data = bytearray(packed({"a": b"first"}))
    part = opened(data).member_bytes("a")
    data[data.index(b"first")] = ord("F")
    assert bytes(part) == b"First"


def test_a_directory_of_64_bits_is_read():
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(3)}, buffer)
    assert LOCATOR_64 in buffer.getvalue()
    # What an ordinary directory would say is gone, so only the wide one can lead there.
    data = bytearray(buffer.getvalue())
    data[-12:-2] = b"\xff" * 10
    assert list(opened(bytes(data))) == list(opened(buffer.getvalue()))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (packed({"a": b"first"}, compression=zipfile.ZIP_BZIP2), "packed by method 12"),
        (packed({"a": b"first"})[:-5], "the zip is truncated"),
        (packed({"a": b"first"})[20:], "the zip's directory is broken at byte 36"),
        (packed({"a": b"x", "b": b"y"}).replace(b"b", b"a"), "two members 'a'"),
        (packed({"a": b"first"}).replace(b"PK\x03\x04", b"PK\x03\x05"), "the zip has no member 'a' at byte 0"),
        (packed({"a": b"first"}).replace(b"PK\x01\x02", b"PK\x01\x03"), "the zip's directory is broken"),
    ],
)
def test_what_is_broken_is_refused(data: bytes, why: str):
    with pytest.raises(CheckpointError, match=why):
        opened(data).member_bytes("a")


def test_what_does_not_unpack_is_refused():
    data = packed({"a": b"first " * 100}, compression=zipfile.ZIP_DEFLATED)
    broken = bytearray(data)
    broken[40:44] = b"\xff\xff\xff\xff"
    with pytest.raises(CheckpointError, match=r"cannot be expanded|expands to"):
        opened(bytes(broken)).member_bytes("a")
