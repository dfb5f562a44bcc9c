"""Folders, files and recorded steps as tensors in order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from roundoff import Run, recording, save_tensor
from roundoff.compare.tensors.tensor_files import open_tensors, tensors_of_step
from roundoff.errors import CheckpointError, CompareError, RunFolderError


def names(path: Path) -> list[str]:
    return [tensor.name for tensor in open_tensors(path).tensors]


def test_files_come_as_people_count(tmp_path: Path):
    for name in ("step10/out", "step2/layer10", "step2/layer9", "alpha"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / f"{name}.npy", np.zeros(2))
    assert names(tmp_path) == ["alpha", "step2/layer9", "step2/layer10", "step10/out"]


def test_saved_tensors_come_in_the_order_of_saving(tmp_path: Path):
    for name in "zyx":
        save_tensor(name, np.zeros(1), to=tmp_path)
    assert names(tmp_path) == ["00000-z", "00001-y", "00002-x"]


def test_every_kind_of_file_is_read(tmp_path: Path):
    x = torch.arange(6.0).reshape(2, 3)
    np.save(tmp_path / "a.npy", x.numpy())
    np.savez(tmp_path / "b.npz", first=x.numpy(), second=x.numpy() + 1)
    torch.save(x, tmp_path / "c.pt")
    torch.save({"conv1": x, "parts": [x, x.bfloat16()]}, tmp_path / "d.pt")
    save_file({"one": x}, tmp_path / "e.safetensors")
    (tmp_path / "notes.txt").write_text("no tensor")
    source = open_tensors(tmp_path)
    assert [tensor.name for tensor in source.tensors] == [
        "a", "b/first", "b/second", "c", "d/conv1", "d/parts.0", "d/parts.1", "e",
    ]  # fmt: skip
    by_name = {tensor.name: tensor for tensor in source.tensors}
    for name in ("a", "b/first", "c", "d/conv1", "d/parts.0", "e"):
        assert torch.equal(by_name[name].read(), x)
    assert torch.equal(by_name["b/second"].read(), x + 1)
    assert by_name["d/parts.1"].dtype == "bfloat16"


def test_a_single_file_is_a_source_too(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.zeros(2))
    np.savez(tmp_path / "z.npz", only=np.zeros(2))
    assert names(tmp_path / "x.npy") == ["x"]
    assert names(tmp_path / "z.npz") == ["only"]


def test_a_folder_without_tensors_is_an_error(tmp_path: Path):
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(CompareError, match=r"none of its files ends in \.npy"):
        open_tensors(tmp_path)


def test_a_pickle_that_would_run_something_is_not_run(tmp_path: Path):
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return print, ("executed",)

    torch.save({"x": Hostile()}, tmp_path / "x.pt")
    with pytest.raises((CheckpointError, CompareError)):
        open_tensors(tmp_path)


def recorded(folder: Path, *, level: str = "tensors") -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(model, to=folder, steps=[0], level=level):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return Run.open(folder)


def test_the_tensors_of_a_step_come_in_the_order_of_its_events(tmp_path: Path):
    run = recorded(tmp_path / "run")
    source = tensors_of_step(run, 0)
    order = {
        f"{event.phase}/{event.microbatch}/{event.site}/{event.op_name}:{event.output}": event.order
        for event in run.iter_events(step=0)
    }
    places = [order[tensor.name] for tensor in source.tensors]
    assert len(places) > 10
    assert places == sorted(places)


def test_content_that_is_stored_once_is_read_under_every_name(tmp_path: Path):
    run = recorded(tmp_path / "run")
    file = run.tensor_file(0)
    assert file.aliases
    source = {tensor.name: tensor for tensor in tensors_of_step(run, 0).tensors}
    assert set(source) == set(file)
    for alias, key in file.aliases.items():
        assert source[alias].read is source[key].read
        assert torch.equal(source[alias].read(), file.torch(key))


def test_a_step_without_tensors_is_an_error(tmp_path: Path):
    with pytest.raises(RunFolderError, match="holds no whole tensors"):
        tensors_of_step(recorded(tmp_path / "run", level="summary"), 0)
