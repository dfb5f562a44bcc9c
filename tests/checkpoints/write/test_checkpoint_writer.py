"""What is written reads back, here and in the libraries the formats come from; half a file is never left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import roundoff.checkpoints.write.checkpoint_writer as writing_mindspore
from roundoff.checkpoints.checkpoint import StoredTensor
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.checkpoints.write.checkpoint_writer import SUFFIXES, TARGETS, Target, target_of, write_checkpoint
from roundoff.errors import CheckpointError

VALUES = {
    "conv.weight": torch.arange(24.0).reshape(2, 3, 2, 2),
    "conv.bias": torch.tensor([float("nan"), -0.0]),
    "half": torch.randn(3, 5).half(),
    "counter": torch.tensor(7),
    "mask": torch.tensor([True, False, True]),
    "wide": torch.randn(2, 2, dtype=torch.float64),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "nothing": torch.zeros(0, 4),
}


def stored(name: str, tensor: Tensor) -> StoredTensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return StoredTensor(name=name, shape=tuple(tensor.shape), dtype=dtype, read=lambda: tensor)


def written(path: Path, target: Target, values: dict[str, Tensor] | None = None) -> Path:
    write_checkpoint(path, [stored(*item) for item in (values or VALUES).items()], target=target)
    return path


@pytest.mark.parametrize("target", TARGETS)
def test_reads_back_as_it_was_written(tmp_path: Path, target: Target):
    with read_checkpoint(written(tmp_path / "a", target)) as found:
        assert set(found.entries) == set(VALUES)
        for name, value in VALUES.items():
            assert found.tensor(name).dtype == value.dtype
            torch.testing.assert_close(found.tensor(name), value, rtol=0, atol=0, equal_nan=True)


def test_torch_itself_reads_it_with_weights_only(tmp_path: Path):
    found = torch.load(written(tmp_path / "a.pth", "torch"), weights_only=True)
    assert torch.equal(found["transposed"], VALUES["transposed"])


def test_safetensors_itself_reads_it(tmp_path: Path):
    found = load_file(written(tmp_path / "a.safetensors", "safetensors", VALUES | {"b": torch.ones(3).bfloat16()}))
    assert torch.equal(found["half"], VALUES["half"])
    assert torch.equal(found["b"], torch.ones(3).bfloat16())


def test_numpy_itself_reads_it(tmp_path: Path):
    with np.load(written(tmp_path / "a.npz", "npz")) as found:
        np.testing.assert_array_equal(found["transposed"], VALUES["transposed"].numpy())


def test_a_large_tensor_is_divided_into_slices_for_mindspore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writing_mindspore, "SLICE_BYTES", 16)
    path = written(tmp_path / "a.ckpt", "mindspore", {"w": torch.arange(10.0).reshape(5, 2)})
    assert path.read_bytes().count(b"Float32") == 3
    assert torch.equal(read_checkpoint(path).tensor("w"), torch.arange(10.0).reshape(5, 2))


def test_states_of_an_optimizer_are_next_to_the_model_for_torch(tmp_path: Path):
    values = {
        "w": torch.ones(2),
        "optimizer.state.0.exp_avg": torch.zeros(2),
        "optimizer.state.0.step": torch.tensor(3.0),
    }
    found = torch.load(written(tmp_path / "a.pth", "torch", values), weights_only=True)
    assert list(found) == ["model", "optimizer"]
    assert found["optimizer"]["state"][0]["step"] == 3


def test_does_not_replace_a_file_unless_requested(tmp_path: Path):
    path = written(tmp_path / "a.pth", "torch")
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="already exists"):
        written(path, "torch", {"w": torch.ones(2)})
    assert path.read_bytes() == before


def test_leaves_no_file_when_reading_fails_half_way(tmp_path: Path):
    def fail() -> Tensor:
        raise CheckpointError("broken")

    bad = StoredTensor(name="z", shape=(2,), dtype="float32", read=fail)
    for target in TARGETS:
        with pytest.raises(CheckpointError, match="broken"):
            write_checkpoint(tmp_path / "a", [stored("w", torch.ones(4)), bad], target=target)
    assert not list(tmp_path.iterdir())


def test_leaves_no_file_when_it_does_not_read_back(tmp_path: Path):
    values = iter([torch.ones(2), torch.zeros(2), torch.zeros(2)])
    tensor = StoredTensor(name="w", shape=(2,), dtype="float32", read=lambda: next(values))
    with pytest.raises(CheckpointError, match="'w' has other values"):
        write_checkpoint(tmp_path / "a", [tensor], target="npz")
    assert not list(tmp_path.iterdir())


def test_a_dtype_that_a_format_does_not_have_is_an_error(tmp_path: Path):
    with pytest.raises(CheckpointError, match="safetensors has no complex64"):
        written(tmp_path / "a", "safetensors", {"w": torch.ones(2, dtype=torch.complex64)})


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path):
    with pytest.raises(CheckpointError, match="cannot be written"):
        written(tmp_path / "nowhere" / "a.npz", "npz")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_suffix_says_the_format(suffix: str):
    assert target_of(Path(f"a{suffix}")) == SUFFIXES[suffix]


def test_a_suffix_that_says_nothing_is_an_error():
    with pytest.raises(CheckpointError, match=r"known suffixes are \.pth"):
        target_of(Path("a.h5"))
