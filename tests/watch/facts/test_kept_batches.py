"""The samples of the first batches that a watched run keeps."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.runs import Run
from roundoff.watch.facts import step_batch
from roundoff.watch.watching import watching


def train(data: list[tuple[Tensor, Tensor]], *, num_microbatches: int = 1) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        optimizer.zero_grad()
        for part, labels in zip(x.chunk(num_microbatches), y.chunk(num_microbatches), strict=True):
            F.cross_entropy(model(part), labels).backward()
        optimizer.step()


def batches(num: int = 4, *, size: int = 10) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(size, 3, 4, generator=generator), torch.arange(size) % 3) for _ in range(num)]


def kept(folder: Path, **settings: int) -> list[dict[str, list[object]]]:
    data = batches()
    with watching(to=folder, **settings):
        train(data)
    return [{key: file[key].tolist() for key in file} for file in Run.open(folder).batches()]


def test_the_first_samples_of_the_first_two_batches_are_kept(tmp_path: Path):
    data = batches()
    assert kept(tmp_path / "a") == [{"target": y[:8].tolist(), "input/<model>[0]": x[:8].tolist()} for x, y in data[:2]]


def test_none_is_kept_where_none_is_wanted(tmp_path: Path):
    assert kept(tmp_path / "a", kept_batches=0) == []
    assert not (tmp_path / "a" / "batches").exists()


def test_as_many_samples_are_kept_as_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_batch, "_MAX_BYTES", 3 * 48 + 1)
    first, _ = kept(tmp_path / "a")
    assert {key: len(rows) for key, rows in first.items()} == {"target": 8, "input/<model>[0]": 3}
    monkeypatch.setattr(step_batch, "_MAX_BYTES", 47)
    first, _ = kept(tmp_path / "b")
    assert {key: len(rows) for key, rows in first.items()} == {"target": 5}


def test_of_several_microbatches_the_first_is_kept(tmp_path: Path):
    data = batches(1)
    with watching(to=tmp_path / "a"):
        train(data, num_microbatches=5)
    (file,) = Run.open(tmp_path / "a").batches()
    assert file["input/<model>[0]"].tolist() == data[0][0][:2].tolist()
    assert file["target"].tolist() == data[0][1][:2].tolist()
