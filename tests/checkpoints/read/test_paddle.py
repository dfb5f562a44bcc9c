"""Paddle's pickles of arrays are read without Paddle, numpy or anything they name being called."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.errors import CheckpointError

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
