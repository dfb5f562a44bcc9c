"""Arrays of numpy come back in their own order; archives that lie or swell are refused."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roundoff.checkpoints.checkpoint import Role
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


SAMPLES = Path(__file__).parents[1] / "samples"


def write(path: Path, value: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("name", ["paddle.pdparams", "paddle.pdopt"])
def test_gives_what_numpy_would_unpickle(name: str):
    expected = pickle.loads((SAMPLES / name).read_bytes())
    with read_checkpoint(SAMPLES / name) as checkpoint:
        for key, entry in checkpoint.entries.items():
            assert np.array_equal(checkpoint.tensor(key).numpy(), expected[key])
            assert (entry.role is Role.OPTIMIZER) == (name == "paddle.pdopt")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "array",
    [
        *(np.arange(6).astype(kind).reshape(2, 3) for kind in ("f4", ">f8", "f2", "i8", "u1", "?", "c8")),
        *(np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)), np.array(2.5), np.zeros((0, 2))),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_every_array_comes_back_by_every_protocol(array: np.ndarray, protocol: int, tmp_path: Path):
    checkpoint = read_checkpoint(write(tmp_path / "a.pdparams", {"w": array}, protocol))
    assert np.array_equal(checkpoint.tensor("w").numpy(), array)


def test_arrays_beyond_four_gigabytes_are_put_together(tmp_path: Path):
    whole = np.arange(12.0)
    divided = {"w": {"OriginShape": (3, 4), "slices": ["w@@.0", "w@@.1"]}}
    saved = {"w@@.0": whole[:7], "w@@.1": whole[7:], "UnpackBigParamInfor@@": divided}
    checkpoint = read_checkpoint(write(tmp_path / "a.pdparams", saved, 2))
    assert list(checkpoint.entries) == ["w"]
    assert np.array_equal(checkpoint.tensor("w").numpy(), whole.reshape(3, 4))


def test_tensors_with_their_internal_names_and_settings_are_read(tmp_path: Path):
    saved = {
        "w": ("linear_0.w_0", np.ones(2)),
        "StructuredToParameterName@@": {"w": "linear_0.w_0"},
        "LR_Scheduler": {"last_epoch": 3, "last_lr": np.float64(0.5)},
    }
    checkpoint = read_checkpoint(write(tmp_path / "a.pdopt", saved))
    assert checkpoint.tensor("w").tolist() == [1, 1]
    assert checkpoint.settings == {"LR_Scheduler.last_epoch": 3, "LR_Scheduler.last_lr": 0.5}


class Lying:
    """An array whose shape is not that of its bytes."""

    def __init__(self, shape: tuple[int, ...], dtype: Any = "f4", content: bytes = bytes(8)) -> None:
        self.state = (1, shape, np.dtype(dtype), False, content)

    def __reduce__(self) -> Any:
        return np.ndarray([0]).__reduce__()[0], (np.ndarray, (0,), b"b"), self.state


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (Lying((25_000_000_000,)), r"an array of shape \[25000000000\] and dtype float32 has 8 bytes at byte \d+"),
        (Lying((2**40, 2**40)), "more elements than fit into any memory"),
        (Lying((-2,)), "something other than counts"),
        (Lying((2,) * 64), "claims 64 dimensions"),
        (Lying((1,), "O", content=b"12345678"), "the dtype 'O8', which no tensor can have"),
        (np.array(["text"]), "the dtype 'U4', which no tensor can have"),
        ({float("nan"): np.ones(1)}, "a tensor has the name nan, which is not a string"),
        ({(1, 2): np.ones(1)}, "which is not a string"),
    ],
)
def test_an_array_that_lies_is_refused_with_its_place(array: Any, why: str, tmp_path: Path):
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(write(tmp_path / "a.pdparams", {"w": array}))


def test_what_holds_itself_is_refused(tmp_path: Path):
    around: list[Any] = [np.ones(1)]
    around.append(around)
    with pytest.raises(CheckpointError, match="too deeply nested entries, or contains itself"):
        read_checkpoint(write(tmp_path / "a.pdparams", {"w": around}))


def test_what_doubles_at_every_level_is_refused(tmp_path: Path):
    doubled: Any = [np.ones(1)]
    for _ in range(50):
        doubled = [doubled, doubled]
    with pytest.raises(CheckpointError, match=r"more than 41\.9 MB of memory, too much for its size"):
        read_checkpoint(write(tmp_path / "a.pdparams", {"w": doubled}))


def test_two_tensors_with_one_name_are_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"two tensors have the name 'a.b'"):
        read_checkpoint(write(tmp_path / "a.pdparams", {"a": {"b": np.ones(1)}, "a.b": np.ones(1)}))


def test_tensors_may_be_written_to(tmp_path: Path):
    tensor = read_checkpoint(write(tmp_path / "a.pdparams", {"w": np.zeros(3)})).tensor("w")
    assert torch.equal(tensor.add_(1), torch.ones(3, dtype=torch.float64))
