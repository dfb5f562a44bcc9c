"""PyTorch's own files give the tensors that torch gives, whatever was saved around them."""

from __future__ import annotations

import argparse
import collections
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.errors import CheckpointError
from tests.checkpoints.checkpoint_samples import trained_model, training_state

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex64, torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool),
]
LAYOUTS = {
    "transposed": torch.randn(3, 4).t(),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": torch.arange(3.0).expand(5, 3),
    "part": torch.arange(10)[3:7],
    "every_second": torch.arange(10)[::2],
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3.5),
    "many_dimensions": torch.randn((3,) * 10),
}


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def saved(value: Any) -> Path:
        torch.save(value, tmp_path / "a.pt", _use_new_zipfile_serialization=request.param)
        return tmp_path / "a.pt"

    return saved


def same_bits(first: Tensor, second: Tensor) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(save: Any, dtype: torch.dtype):
    saved = torch.tensor([0, 1, 3, 1]).to(dtype)
    found = read_checkpoint(save({"x": saved})).tensor("x")
    assert same_bits(saved, found)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_comes_back(save: Any, layout: str):
    found = read_checkpoint(save({"x": LAYOUTS[layout]})).tensor("x")
    assert torch.equal(found, LAYOUTS[layout])


def test_a_training_comes_apart_into_model_optimizer_and_settings(save: Any):
    state = training_state()
    checkpoint = read_checkpoint(save(state))
    for name, value in state["model"].items():
        assert torch.equal(checkpoint.tensor(name.removeprefix("module.")), value)
    by_role = collections.Counter(entry.role for entry in checkpoint.entries.values())
    assert by_role == {Role.PARAMETER: 6, Role.BUFFER: 3, Role.OPTIMIZER: 18, Role.OTHER: 1}
    assert torch.equal(checkpoint.tensor("optimizer.state.2.exp_avg"), state["optimizer"]["state"][2]["exp_avg"])
    assert checkpoint.tensor("mean").tolist() == state["mean"].tolist()
    expected = {"epoch": 3, "args.lr": 0.1, "args.layers": [1, 2], "best": 0.75, "optimizer.param_groups.0.lr": 0.001}
    assert {name: checkpoint.settings[name] for name in expected} == expected


def test_tied_tensors_are_both_read(tmp_path: Path):
    weight = torch.randn(3, 3)
    torch.save({"first": weight, "second": weight, "row": weight[1:2].t()}, tmp_path / "a.pt")
    checkpoint = read_checkpoint(tmp_path / "a.pt")
    first = checkpoint.tensor("first")
    assert torch.equal(first, weight)
    first.zero_()
    assert torch.equal(checkpoint.tensor("second"), weight)
    assert torch.equal(checkpoint.tensor("row"), weight[1:2].t())


def test_a_model_that_was_saved_whole_gives_its_state_and_nothing_runs(save: Any):
    model = trained_model()[0]
    checkpoint = read_checkpoint(save(model))
    assert list(checkpoint.entries) == [
        *(f"0.{name}" for name in ("weight", "bias")),
        *(f"1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
        *(f"3.{name}" for name in ("weight", "bias")),
    ]
    assert checkpoint.entries["1.running_mean"].role is Role.BUFFER
    for name, value in model.state_dict().items():
        assert torch.equal(checkpoint.tensor(name), value)


def test_torchscript_is_read_like_a_state(tmp_path: Path):
    model = nn.Sequential(nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(model), tmp_path / "script.pt")
    checkpoint = read_checkpoint(tmp_path / "script.pt")
    assert torch.equal(checkpoint.tensor("0.weight"), model[0].weight.detach())


def test_other_objects_are_described_by_their_class(save: Any):
    state = {"w": torch.ones(2), "sparse": torch.eye(3).to_sparse(), "device": torch.device("cpu"), "path": Path("a")}
    settings = read_checkpoint(save(state)).settings
    assert settings["sparse"] == "<torch._utils._rebuild_sparse_tensor>"
    assert settings["device"] == "<torch.device>"
    assert settings["path"] == "<pathlib.PosixPath>"


def test_settings_are_cut_and_not_left_out(save: Any):
    state = {"losses": [0.5] * 1000, "log": "x" * 10_000, "args": argparse.Namespace(seed=2**100)}
    settings = read_checkpoint(save(state)).settings
    assert settings["losses"] == [*[0.5] * 100, "<900 more>"]
    assert settings["log"] == "x" * 300
    assert settings["args.seed"] == "<a number of 101 bits>"


def test_a_storage_that_is_too_short_is_refused_with_its_place(tmp_path: Path):
    torch.save({"w": torch.ones(10)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(tmp_path / "b.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name)[: 8 if "/data/" in name else None])
    with pytest.raises(CheckpointError, match=r"the storage '0' claims 40 bytes but has 8 at byte \d+"):
        read_checkpoint(tmp_path / "b.pt")


def test_compressed_members_are_read_too(tmp_path: Path):
    torch.save({"w": torch.arange(1000.0)}, tmp_path / "a.pt")
    packed = zipfile.ZipFile(tmp_path / "b.pt", "w", compression=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "a.pt") as old, packed as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert torch.equal(read_checkpoint(tmp_path / "b.pt").tensor("w"), torch.arange(1000.0))


def test_another_byte_order_is_refused(tmp_path: Path):
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    (tmp_path / "a.pt").write_bytes((tmp_path / "a.pt").read_bytes().replace(b"little", b"bigger"))
    with pytest.raises(CheckpointError, match="big-endian"):
        read_checkpoint(tmp_path / "a.pt")
