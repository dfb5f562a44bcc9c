"""Arrays of numpy in files: whatever order and dtype, and what is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch

from roundoff.compare.tensors.save_tensor import save_tensor
from roundoff.compare.tensors.tensor_files import read_array
from roundoff.errors import CheckpointError

ARRAYS = [
    np.arange(12.0).reshape(3, 4),
    np.asfortranarray(np.arange(24, dtype=np.int32).reshape(2, 3, 4)),
    np.arange(6, dtype=">f4").reshape(2, 3),
    np.array([True, False]),
    np.float16(3.5),
    np.zeros((0, 3)),
    np.array([1 + 2j, 3j]),
    np.arange(5, dtype=np.uint8),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype} {array.shape}")
def test_an_array_comes_back(tmp_path: Path, array: np.ndarray):
    np.save(tmp_path / "x.npy", array)
    found = read_array(tmp_path / "x.npy")
    assert found.shape == array.shape
    assert found.read().tolist() == array.tolist()
    assert str(found.read().dtype) == f"torch.{found.dtype}"


def test_bfloat16_that_save_tensor_wrote_is_bfloat16(tmp_path: Path):
    x = torch.tensor([1.0, -2.5, 3e38]).bfloat16()
    assert torch.equal(read_array(save_tensor("x", x, to=tmp_path)).read(), x)


def test_reading_leaves_the_file_as_it_is(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    read_array(tmp_path / "x.npy").read().fill_(7.0)
    assert np.load(tmp_path / "x.npy").tolist() == [0, 0, 0]


def npy(header: bytes, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"no array at all, but long enough", "is not an array"),
        (b"\x93NUMPY\x01", "claims 8 bytes, but only 7 are left"),
        (npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (5,), }", b"\0" * 39), "claims 40 bytes, but only 39"),
        (npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }"), "claims 799999999992 bytes"),
        (npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"), "not that of a tensor"),
        (npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"cos\nsystem\n."), "not that of a tensor"),
        (npy(b"{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }", b"\0" * 8), "not that of a tensor"),
        (npy(b"{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }", b"\0" * 16), "not that of a tensor"),
        (npy(b"__import__('os').system('false')"), "not that of a tensor"),
    ],
)
def test_a_broken_or_hostile_file_is_refused_with_its_reason(tmp_path: Path, content: bytes, why: str):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_array(path)
    assert why in str(caught.value)
    assert str(path) in str(caught.value)


def test_no_mutation_of_a_file_brings_anything_but_an_array_or_the_error(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    whole = (tmp_path / "x.npy").read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(500):
        changed = bytearray(whole[: generator.integers(1, len(whole) + 1)])
        for place in generator.integers(0, min(len(changed), 100), size=3):
            changed[place] = generator.integers(0, 256)
        (tmp_path / "y.npy").write_bytes(changed)
        with contextlib.suppress(CheckpointError):
            read_array(tmp_path / "y.npy").read()
