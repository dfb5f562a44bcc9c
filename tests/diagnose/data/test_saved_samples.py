"""The samples that a watched run keeps, with their labels."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose.data.samples import SavedBatch, channel_ranges, saved_batches
from roundoff.runs import Run, RunInfo, RunWriter
from roundoff.watch.watching import watching


def kept(folder: Path, x: Tensor, y: Tensor, *, dtype: torch.dtype = torch.float32) -> list[SavedBatch]:
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 4)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(to=folder):
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(dtype)).float(), y).backward()
            optimizer.step()
    return saved_batches(Run.open(folder), 0)


def test_samples_come_with_their_labels(tmp_path: Path):
    x, y = torch.randn(12, 3, 5, 5), torch.arange(12) % 4
    first, second = kept(tmp_path / "a", x, y)
    assert (first.step, second.step) == (0, 1)
    (given,) = second.inputs
    assert given.place == "<model>[0]"
    assert np.array_equal(given.samples, x[:8].numpy())
    assert given.labels is not None
    assert given.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_bfloat16_is_read_as_numbers(tmp_path: Path):
    x = torch.randn(4, 6)
    (given,) = kept(tmp_path / "a", x, torch.zeros(4, dtype=torch.long), dtype=torch.bfloat16)[0].inputs
    assert np.array_equal(given.samples, x.bfloat16().float().numpy())


def test_channels_have_ranges_of_their_own():
    samples = np.zeros((2, 3, 6, 6), dtype=np.float32)
    samples[:, 1] = 5.0
    samples[0, 2] = [1.0, -1.0] * 3
    samples[1, 2] = np.inf
    black, bright, mixed = channel_ranges(samples)
    assert (black.min, black.max, bright.mean, bright.std) == (0, 0, 5, 0)
    assert (mixed.min, mixed.mean, mixed.max, mixed.std, mixed.num_nonfinite) == (-1, 0, 1, 1, 36)
    assert [each.mean for each in channel_ranges(np.moveaxis(samples, 1, 3))] == [0, 5, 0]


def test_ids_and_maps_of_many_channels_have_none():
    assert channel_ranges(np.zeros((2, 8), dtype=np.int64)) == []
    assert channel_ranges(np.zeros((2, 64, 7, 7), dtype=np.float32)) == []


def test_a_file_of_someone_else_that_holds_no_samples_has_none(tmp_path: Path):
    with RunWriter.create(tmp_path / "a", RunInfo()) as writer, writer.batch(0) as file:
        file.add("input/<model>[0]", np.zeros((), dtype=np.float32), dtype="F32", shape=())
        file.add("input/<model>[1]", np.zeros((3, 0), dtype=np.float32), dtype="F32", shape=(3, 0))
        file.add("input/<model>[2]", np.zeros(4, dtype=np.uint8), dtype="F8_E4M3", shape=(4,))
        file.add("target", np.zeros((), dtype=np.int64), dtype="I64", shape=())
    (batch,) = saved_batches(Run.open(tmp_path / "a"), 0)
    assert (batch.step, batch.inputs, batch.target) == (0, [], None)
