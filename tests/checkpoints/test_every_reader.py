"""The contract of all readers: every tensor is what its entry says, and every bad file is refused with its reason."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.checkpoints.read.mindspore import read_varint
from roundoff.errors import CheckpointError
from tests.checkpoints.checkpoint_samples import write_samples
from tests.checkpoints.fuzz_readers import fuzz

FORMATS = {
    "arrays.npz": "npz",
    "chunked.msgpack": "flax",
    "distributed": "torch-distributed",
    "flax.msgpack": "flax",
    "keras.weights.h5": "keras",
    "keras_model.keras": "keras",
    "legacy.pth": "torch-legacy",
    "ms_dtypes.ckpt": "mindspore",
    "ms_opt.ckpt": "mindspore",
    "ms_tiny.ckpt": "mindspore",
    "ms_tiny.safetensors": "safetensors",
    "ms_tiny_ref.npz": "npz",
    "packed.npz": "npz",
    "paddle.pdopt": "paddle",
    "paddle.pdparams": "paddle",
    "sharded": "safetensors",
    "training.pt": "torch-zip",
    "whole_model.pt": "torch-zip",
}
FILES = [name for name in FORMATS if name not in ("distributed", "sharded")]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_samples(tmp_path_factory.mktemp("samples"))


def test_every_sample_is_held_to_the_contract(samples: dict[str, Path]):
    assert samples.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_every_tensor_is_what_its_entry_says(samples: dict[str, Path], name: str):
    with read_checkpoint(samples[name]) as checkpoint:
        assert checkpoint.format == FORMATS[name]
        assert checkpoint.entries
        for entry in checkpoint.entries.values():
            tensor = checkpoint.tensor(entry.name)
            assert (tuple(tensor.shape), str(tensor.dtype)) == (entry.shape, f"torch.{entry.dtype}")


@pytest.mark.parametrize("name", FORMATS)
def test_tensors_outlive_their_checkpoint_and_writing_to_them_leaves_the_file(samples: dict[str, Path], name: str):
    path = samples[name]
    before = contents(path)
    with read_checkpoint(path) as checkpoint:
        tensors = [checkpoint.tensor(entry) for entry in checkpoint.entries]
    copies = [tensor.clone() for tensor in tensors]
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.copy_(copy + 1 if copy.dtype != torch.bool else ~copy)
    assert contents(path) == before


@pytest.mark.parametrize("name", FORMATS)
def test_the_content_decides_and_not_the_suffix(samples: dict[str, Path], name: str, tmp_path: Path):
    if samples[name].is_file():
        renamed = tmp_path / "something.else"
        renamed.write_bytes(samples[name].read_bytes())
        assert read_checkpoint(renamed).format == FORMATS[name]


@pytest.mark.parametrize("name", FORMATS)
def test_the_error_about_an_unknown_name_has_the_command_that_lists_them(samples: dict[str, Path], name: str):
    with read_checkpoint(samples[name]) as checkpoint, pytest.raises(CheckpointError, match="roundoff params"):
        checkpoint.tensor("no such thing")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_off_is_refused_with_its_name(samples: dict[str, Path], name: str, tmp_path: Path):
    whole = samples[name].read_bytes()
    places = (len(whole) // 2, len(whole) - 1) if name.startswith("keras") else range(1, len(whole), len(whole) // 40)
    for length in places:
        short = tmp_path / f"short_{name}"
        short.write_bytes(whole[:length])
        if FORMATS[name] == "mindspore" and length in ends_of_values(whole):
            continue  # a shorter checkpoint, and nothing in the format tells
        with pytest.raises(CheckpointError, match=short.name):
            read_every_tensor(short)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"step loss\n0 2.3\n1 2.2\n", r"it starts with b'step los', unlike all files of PyTorch"),
        (b"\x89PNG\r\n\x1a\n", "it starts with"),
        (b'{"a": 1}', "not the index of a sharded checkpoint"),
        (b'{"a": ', "it is not JSON"),
        (b"PK\x03\x04" + b"\x00" * 100, "the zip is truncated"),
        (b"\x00" * 257 + b"ustar", "it is a tar"),
        (b"\x89HDF\r\n\x1a\n" + b"\x00" * 100, "the HDF5 library reports"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_its_reason(content: bytes, why: str, tmp_path: Path):
    path = tmp_path / "some.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"'{path}' cannot be read as a checkpoint\.\n  why: .*{why}"):
        read_checkpoint(path)


def test_folders_and_missing_files_are_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"it is a folder without \.metadata, model.safetensors.index.json"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"There is no checkpoint '.*absent.pt'"):
        read_checkpoint(tmp_path / "absent.pt")
    with pytest.raises(CheckpointError, match="it is not a regular file"):
        read_checkpoint("/dev/null")


@pytest.mark.parametrize("name", FORMATS)
def test_roles_distinguish_the_model_from_everything_else(samples: dict[str, Path], name: str):
    with read_checkpoint(samples[name]) as checkpoint:
        for entry in checkpoint.entries.values():
            if any(word in entry.name for word in ("running_", "moving_", "_mean", "_variance", "num_batches")):
                assert entry.role is Role.BUFFER
            if any(word in entry.name for word in ("optimizer", "moments", "velocity")):
                assert entry.role is Role.OPTIMIZER
            if entry.name.endswith((".weight", ".bias", ".gamma", ".kernel")) and entry.role is not Role.OPTIMIZER:
                assert entry.role is Role.PARAMETER


@pytest.mark.parametrize("seed", range(2))
def test_broken_files_are_read_or_refused_quickly_and_in_little_memory(seed: int):
    counts = fuzz(num_cases=1500, seed=seed)
    assert counts.total() == 1500
    assert sum(count for name, count in counts.items() if name.endswith("refused")) > 700


@pytest.mark.parametrize("name", FORMATS)
def test_tensors_have_memory_of_their_own(samples: dict[str, Path], name: str):
    with read_checkpoint(samples[name]) as checkpoint:
        for entry in checkpoint.entries.values():
            first, second = checkpoint.tensor(entry.name), checkpoint.tensor(entry.name)
            before = second.clone()
            first.zero_()
            assert torch.equal(second, before)


def test_files_larger_than_the_memory_open_at_once(tmp_path: Path):
    header = (
        json.dumps({"w": {"dtype": "F32", "shape": [2**16, 2**20], "data_offsets": [0, 2**38]}}).encode().ljust(120)
    )
    path = tmp_path / "large.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with path.open("r+b") as file:
        file.truncate(8 + len(header) + 2**38)  # a hole, which takes no room on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with read_checkpoint(path) as checkpoint:
        assert checkpoint.entries["w"].shape == (2**16, 2**20)
        with pytest.raises(CheckpointError, match="there is no memory for a tensor of 274877906944 bytes"):
            checkpoint.tensor("w")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024


def read_every_tensor(path: Path) -> None:
    with read_checkpoint(path) as checkpoint:
        for name in checkpoint.entries:
            checkpoint.tensor(name)


def ends_of_values(data: bytes) -> set[int]:
    """Say where each value of a protobuf of MindSpore ends."""
    ends, position = set(), 0
    file = FileBytes(Path(), memoryview(data))
    while position < len(data):
        length, position = read_varint(file, position + 1)
        position += length
        ends.add(position)
    return ends


def contents(path: Path) -> list[bytes]:
    def files() -> Iterator[Path]:
        yield from sorted(path.iterdir()) if path.is_dir() else [path]

    return [file.read_bytes() for file in files()]
