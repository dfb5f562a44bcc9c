"""Distributed checkpoints are put together from their chunks, and stay inside their folder."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.errors import CheckpointError
from tests.checkpoints.checkpoint_samples import training_state, write_distributed

TWO_RANKS = """
import sys, warnings
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

warnings.simplefilter("ignore")
rank, folder = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(folder + ".store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
weight = torch.arange(35.0).reshape(5, 7)
rows, columns = (distribute_tensor(weight, mesh, [Shard(dimension)]) for dimension in (0, 1))
dcp.save({"model": {"rows": rows, "columns": columns, "whole": weight}}, checkpoint_id=folder)
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_distributed(tmp_path / "saved", training_state())
    return tmp_path / "saved"


def test_gives_what_was_saved(folder: Path):
    state = training_state()
    checkpoint = read_checkpoint(folder)
    assert checkpoint.path == folder
    for name, value in state["model"].items():
        assert torch.equal(checkpoint.tensor(name.removeprefix("module.")), value)
    assert torch.equal(checkpoint.tensor("optimizer.state.0.exp_avg"), state["optimizer"]["state"][0]["exp_avg"])
    assert checkpoint.entries["optimizer.state.0.exp_avg"].role is Role.OPTIMIZER
    assert (checkpoint.settings["epoch"], checkpoint.settings["optimizer.param_groups.0.lr"]) == (3, 0.001)


@pytest.mark.slow
def test_chunks_of_two_ranks_are_put_together(tmp_path: Path):
    command = [sys.executable, "-c", TWO_RANKS]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path / "saved")]) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    checkpoint = read_checkpoint(tmp_path / "saved")
    for name in ("rows", "columns", "whole"):
        assert torch.equal(checkpoint.tensor(name), torch.arange(35.0).reshape(5, 7))


def test_a_file_that_is_missing_is_named(folder: Path):
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"There is no checkpoint '.*__0_0.distcp'"):
        read_checkpoint(folder)


def test_a_file_that_is_cut_off_is_named(folder: Path):
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"__0_0.distcp' cannot be read .*\n.*a part of .* bytes are left|claims"):
        read_checkpoint(folder)


def test_a_path_that_leads_out_of_the_folder_is_refused(folder: Path):
    metadata = folder / ".metadata"
    outside = b"../../secret"
    assert len(outside) == len(b"__0_0.distcp")
    metadata.write_bytes(metadata.read_bytes().replace(b"__0_0.distcp", outside))
    with pytest.raises(CheckpointError, match=r"names the file '../../secret', which is not in the same folder"):
        read_checkpoint(folder)


def test_metadata_that_describes_nothing_is_refused(tmp_path: Path):
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError, match="it does not describe a checkpoint"):
        read_checkpoint(tmp_path)
