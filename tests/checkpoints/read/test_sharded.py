"""Sharded checkpoints are one checkpoint, and their index leads nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.errors import CheckpointError
from tests.checkpoints.checkpoint_samples import trained_model, write_sharded

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sharded(tmp_path / "sharded", trained_model()[0].state_dict())
    return tmp_path / "sharded"


@pytest.mark.parametrize("part", ["", INDEX])
def test_the_folder_and_its_index_mean_the_same(folder: Path, part: str):
    checkpoint = read_checkpoint(folder / part)
    for name, value in trained_model()[0].state_dict().items():
        assert torch.equal(checkpoint.tensor(name), value)
    assert checkpoint.format == "safetensors"


def test_files_of_torch_can_be_shards_too(tmp_path: Path):
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model-1.bin")
    torch.save({"b": torch.zeros(2)}, tmp_path / "pytorch_model-2.bin")
    files = {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.format, list(checkpoint.entries)) == ("torch-zip", ["a", "b"])


def test_a_folder_with_one_file_needs_no_index(tmp_path: Path):
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    assert list(read_checkpoint(tmp_path).entries) == ["a"]


def test_a_shard_that_is_missing_is_named(folder: Path):
    (folder / "model-3.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"There is no checkpoint '.*model-3.safetensors'"):
        read_checkpoint(folder)


@pytest.mark.parametrize("file", ["../model-0.safetensors", "/etc/passwd", "", "..", "a\x00b"])
def test_an_index_that_leads_elsewhere_is_refused(folder: Path, file: str):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"0.weight": file}}))
    with pytest.raises(CheckpointError, match="which is not in the same folder"):
        read_checkpoint(folder)


def test_a_tensor_that_its_shard_lacks_is_named(folder: Path):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"absent": "model-0.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"'model-0.safetensors' does not have the tensor 'absent'"):
        read_checkpoint(folder)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {}}', "{"])
def test_an_index_that_is_none_is_refused(folder: Path, text: str):
    (folder / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=INDEX):
        read_checkpoint(folder)
