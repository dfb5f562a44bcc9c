"""A hostile checkpoint is refused before it has cost much: at most four times its size, and 64 MB."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.errors import CheckpointError
from tests.forked import run_forked

pytestmark = pytest.mark.slow


def torch_zip(pickle: bytes, *, storage: bytes = bytes(4)) -> bytes:
    """Make a torch file whose pickle is compressed, as an attacker would."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("a/data.pkl", pickle)
        archive.writestr("a/data/0", storage)
    return buffer.getvalue()


def memo(number: int, *, is_put: bool = False) -> bytes:
    return (b"r" if is_put else b"j") + struct.pack("<I", number)


STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n" + memo(0, is_put=True) + b"("
TENSOR += STORAGE + b"K\x00)))\x89}t" + memo(1, is_put=True) + b"0"

BOMBS: dict[str, Callable[[], bytes]] = {
    "a dict of many items that holds itself": lambda: torch_zip(
        b"\x80\x02}"
        + memo(0, is_put=True)
        + b"("
        + b"".join(b"J" + struct.pack("<i", n) + memo(0) for n in range(300_000))
        + b"u."
    ),
    "a list of lists that hold one list": lambda: torch_zip(
        b"\x80\x02](" + b"}" * 300_000 + b"e" + memo(0, is_put=True) + b"](" + memo(0) * 50_000 + b"e."
    ),
    "millions of empty dicts": lambda: torch_zip(b"\x80\x02](" + b"}" * 1_500_000 + b"e."),
    "a million objects": lambda: torch_zip(
        b"\x80\x02ca\nB\n" + memo(0, is_put=True) + b"0](" + (memo(0) + b")R") * 1_500_000 + b"e."
    ),
    "objects with state": lambda: torch_zip(
        b"\x80\x02ca\nB\n" + memo(0, is_put=True) + b"0](" + (memo(0) + b")R}K\x01K\x02sb") * 600_000 + b"e."
    ),
    "many tensors of one storage": lambda: torch_zip(
        b"\x80\x02"
        + TENSOR
        + b"}("
        + b"".join(b"J" + struct.pack("<i", n) + memo(0) + memo(1) + b"R" for n in range(300_000))
        + b"u."
    ),
    "a long text of wide characters": lambda: torch_zip(
        b"\x80\x02\x8d" + struct.pack("<Q", 30_000_004) + "\U0001f600".encode() + b"a" * 30_000_000 + b"."
    ),
    "a memo of millions": lambda: torch_zip(
        b"\x80\x02N" + b"".join(memo(n, is_put=True) for n in range(1_500_000)) + b"."
    ),
    "a safetensors header of empty lists": lambda: safetensors(b'{"a":[' + b"[]," * 3_000_000 + b"[]]}"),
    "a safetensors header of objects": lambda: safetensors(b'{"a":[' + b"{}," * 3_000_000 + b"{}]}"),
    "an index of lists": lambda: b'{"weight_map":[' + b"[]," * 3_000_000 + b"[]]}",
    "a msgpack of empty maps": lambda: b"\x81\xa1a\xdd" + struct.pack(">I", 4_900_000) + b"\x80" * 4_900_000,
    "a protobuf of empty tensors": lambda: b"\x0a\x06\x0a\x00\x12\x02\x08\x00" * 290_000,
    "a zip of empty members": lambda: zip_of_names(200_000),
    "a zip that claims 600 MB": lambda: lying_npz(),
    "deep nesting in JSON": lambda: safetensors(b'{"a":' + b"[" * 2_000_000 + b"}"),
}


def safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def zip_of_names(count: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(count):
            archive.writestr(f"{number}", b"")
    return buffer.getvalue()


def lying_npz() -> bytes:
    """Make an archive with a compressed array of 600 MB, whose end is missing."""
    head = (
        b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (150000000,), }".ljust(117)
        + b"\n"
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("a.npy", head + bytes(1000))
        archive.writestr("filler", b"".join(struct.pack("<Q", n * n * 2654435761 % 2**64) for n in range(800_000)))
    data = bytearray(buffer.getvalue())
    size = struct.pack("<I", len(head) + 600_000_000)
    place = data.find(b"PK\x01\x02")
    data[place + 24 : place + 28] = size
    return bytes(data)


def refuse(path: Path) -> str:
    try:
        with read_checkpoint(path) as checkpoint:
            for name in checkpoint.entries:
                checkpoint.tensor(name)
    except CheckpointError as error:
        return str(error)
    return "read"


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_four_times_its_size(tmp_path: Path, name: str):
    path = tmp_path / "bomb"
    path.write_bytes(BOMBS[name]())
    result = run_forked(lambda: refuse(path))
    allowed = 4 * path.stat().st_size + 64 * 2**20
    print(f"{name}: {path.stat().st_size / 1e6:.2f} MB, {result.grown_bytes / 1e6:.0f} MB, {result.value!s:.200}")
    assert result.status == 0, result.value
    assert "cannot be read as a checkpoint" in result.value
    assert result.grown_bytes <= allowed
