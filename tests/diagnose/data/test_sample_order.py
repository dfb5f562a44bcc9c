"""Labels counted, and what came again across epochs and ranks."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from roundoff.diagnose.data.samples import EpochSeen, epochs_seen, label_counts
from roundoff.runs import BatchFacts, Run, TensorFacts
from roundoff.watch.watching import watching
from tests.report.sample_runs import write_ranks_run
from tests.run_folders import write_run


def trained(folder: Path, *, shuffle: bool, repeats: int = 1) -> Run:
    torch.manual_seed(0)
    x = torch.randn(32 // repeats, 10).repeat(repeats, 1)
    data = TensorDataset(x, torch.arange(32) % 3)
    model = nn.Linear(10, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(to=folder):
        loader = DataLoader(data, batch_size=8, shuffle=shuffle)
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    return Run.open(folder)


def summary_of(each: EpochSeen) -> tuple[int, int, int, int, bool | None]:
    return each.first_step, each.last_step, each.num_samples, each.num_again, each.is_same_order


def test_an_order_that_repeats_is_distinguished_from_a_shuffled_one(tmp_path: Path):
    first, second = epochs_seen(trained(tmp_path / "a", shuffle=False))
    assert (summary_of(first), summary_of(second)) == ((0, 3, 32, 0, None), (4, 7, 32, 0, True))
    assert (first.sampler, first.epoch, second.epoch) == ("SequentialSampler", 0, 1)
    _, second = epochs_seen(trained(tmp_path / "b", shuffle=True))
    assert summary_of(second) == (4, 7, 32, 0, False)


def test_samples_that_come_again_within_an_epoch_are_counted(tmp_path: Path):
    first, _ = epochs_seen(trained(tmp_path / "a", shuffle=False, repeats=2))
    assert (first.num_samples, first.num_again) == (32, 16)


def test_labels_are_counted_over_the_steps(tmp_path: Path):
    found = label_counts(trained(tmp_path / "a", shuffle=True))
    assert found is not None
    assert (found.counts, found.num_ignored, found.num_steps) == ({0: 22, 1: 22, 2: 20}, 0, 8)


def test_labels_that_the_criterion_ignores_are_counted_apart(tmp_path: Path):
    target = TensorFacts(
        place="target", shape=(6,), dtype="int64", counts={"-100": 3, "7": 2, "0": 1, "True": 5, "²": 1}
    )
    batch = BatchFacts(step=0, targets=(target,), criterion_settings={"ignore_index": 0})
    found = label_counts(write_run(tmp_path / "a", batch))
    assert found is not None
    assert (found.counts, found.num_ignored) == ({1: 5, 7: 2}, 5)  # what is no number counts as no


def test_without_labels_there_are_no_counts(tmp_path: Path):
    run = write_ranks_run(tmp_path / "a", names=["a"], odd=lambda *_: 0)
    assert label_counts(run) is None
    assert epochs_seen(run) == []
