"""Arrays of numpy come back in their own order; archives that lie or swell are refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.errors import CheckpointError

ARRAYS = {
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "big_endian": np.arange(6, dtype=">f8"),
    "fortran": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    "scalar": np.float16(2.5),
    "empty": np.zeros((0, 3)),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j], dtype=">c8"),
    "int64": np.array([-(2**62)]),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_gives_what_numpy_gives(tmp_path: Path, save: object):
    assert callable(save)
    save(tmp_path / "a.npz", **ARRAYS)
    checkpoint = read_checkpoint(tmp_path / "a.npz")
    for name, array in ARRAYS.items():
        assert checkpoint.tensor(name).tolist() == array.tolist()
        assert checkpoint.entries[name].shape == np.shape(array)


def test_two_bytes_without_a_meaning_are_bfloat16(tmp_path: Path):
    numbers = torch.tensor([1.0, -2.5], dtype=torch.bfloat16)
    np.savez(tmp_path / "a.npz", w=numbers.view(torch.int16).numpy().view("V2"))
    assert torch.equal(read_checkpoint(tmp_path / "a.npz").tensor("w"), numbers)


def npy(header: str, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + body


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (25000000000,), }\n"),
            "needs 100000000000 bytes but has 0",
        ),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"cos\nsystem\n."), "not that of a tensor"),
        (npy("{'descr': '<U5', 'fortran_order': False, 'shape': (1,), }\n"), "not that of a tensor"),
        (npy("__import__('os').system('true')\n"), "not that of a tensor"),
        (
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1, " * 50 + "), }\n", b"\x00" * 4),
            "50 dimensions",
        ),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + "), }\n"), "9999|integer string"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "the header of an array claims 65535 bytes"),
        (b"not an array", "is not an array"),
    ],
)
def test_an_array_that_lies_is_refused(member: bytes, why: str, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("w.npy", member)
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(tmp_path / "a.npz").tensor("w")


def test_a_zip_bomb_is_refused_before_it_unpacks(tmp_path: Path):
    length = 200_000_000
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        header = npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({length},), }}\n")
        with archive.open("w.npy", "w") as member:
            member.write(header)
            for _ in range(200):
                member.write(b"\x00" * (length // 200))
    (tmp_path / "a.npz").write_bytes(buffer.getvalue())
    checkpoint = read_checkpoint(tmp_path / "a.npz")
    with pytest.raises(CheckpointError, match=r"would expand to 2000000\d\d bytes, more than the limit of 67108864"):
        checkpoint.tensor("w")


def test_a_member_that_unpacks_to_less_than_it_says_is_refused(tmp_path: Path):
    np.savez_compressed(tmp_path / "a.npz", w=np.arange(1000.0))
    data = (tmp_path / "a.npz").read_bytes()
    size = (8128).to_bytes(4, "little")
    assert data.count(size) >= 1
    (tmp_path / "a.npz").write_bytes(data.replace(size, (8136).to_bytes(4, "little")))
    with pytest.raises(CheckpointError, match="bytes"):
        read_checkpoint(tmp_path / "a.npz").tensor("w")
