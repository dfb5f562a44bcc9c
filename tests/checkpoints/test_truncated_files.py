"""A checkpoint that another program shortens while it is being read is an error: not a signal, not other values."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.compare.tensors.tensor_files import open_tensors
from roundoff.errors import CheckpointError
from tests.checkpoints.checkpoint_samples import write_samples
from tests.checkpoints.test_every_reader import FORMATS
from tests.forked import run_forked


def errors_of(readers: list[Callable[[], object]]) -> list[str]:
    errors = []
    for read in readers:
        try:
            read()
        except CheckpointError as error:
            errors.append(str(error))
    return errors


def check_equal(tensor: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(tensor, expected)


def shorten(path: Path, num_bytes: int = 0) -> None:
    for file in path.iterdir() if path.is_dir() else [path]:
        os.truncate(file, num_bytes)


@pytest.mark.parametrize("name", FORMATS)
def test_a_checkpoint_that_becomes_shorter_is_an_error(tmp_path: Path, name: str):
    path = write_samples(tmp_path)[name]

    def read() -> list[str]:
        checkpoint = read_checkpoint(path)
        whole = {entry: checkpoint.tensor(entry).clone() for entry in checkpoint.entries}
        shorten(path)
        return errors_of([lambda entry=entry: check_equal(checkpoint.tensor(entry), whole[entry]) for entry in whole])

    result = run_forked(read)
    assert result.status == 0, result
    assert result.value or name == "packed.npz"  # so small that it was read whole
    assert all("cannot be read" in error for error in result.value)


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.pt", "x.safetensors"])
def test_saved_tensors_that_become_shorter_are_an_error(tmp_path: Path, name: str):
    path = tmp_path / name
    x = torch.randn(100_000)
    match path.suffix:
        case ".npy":
            np.save(path, x.numpy())
        case ".npz":
            np.savez(path, x=x.numpy())
        case ".pt":
            torch.save({"x": x}, path)
        case _:
            save_file({"x": x}, path)

    def read() -> list[str]:
        source = open_tensors(path)
        os.truncate(path, 200_000)
        return errors_of([lambda: source.tensors[0].read().clone()])

    result = run_forked(read)
    assert result.status == 0, result
    assert len(result.value) == 1
    assert "became shorter while it was read" in result.value[0] or "claims 400000 bytes, but only" in result.value[0]


def test_a_tensor_stays_what_it_was_when_its_file_is_gone(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    x = torch.randn(100_000)
    save_file({"x": x}, path)
    tensor = read_checkpoint(path).tensor("x")
    os.truncate(path, 0)
    assert torch.equal(tensor, x)


def test_tensors_that_share_a_storage_are_each_read_alone(tmp_path: Path):
    """A storage of many tensors is not read again, whole, for each of them."""
    flat = torch.randn(10_000_000)
    torch.save({str(place): flat[place * 10_000 : (place + 1) * 10_000] for place in range(1000)}, tmp_path / "x.pt")
    checkpoint = read_checkpoint(tmp_path / "x.pt")
    result = run_forked(
        lambda: all(
            torch.equal(checkpoint.tensor(str(place)), flat[place * 10_000 : (place + 1) * 10_000])
            for place in range(1000)
        )
    )
    assert result.value is True
    assert result.grown_bytes < 10 * 2**20
