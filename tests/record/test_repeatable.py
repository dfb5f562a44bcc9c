"""A training that repeats itself: seeds, deterministic kernels, the first batch again and again."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from roundoff.record.repeatable import repeatable

NUMBERS = TensorDataset(torch.arange(10), torch.arange(10) * 10)


def repeating(**options: Any) -> Any:
    return repeatable(**({"seed": None, "deterministic": False, "repeat_batch": False} | options))


def draws() -> list[float]:
    return [random.random(), np.random.rand(), torch.rand(()).item()]


def test_the_seed_sets_the_generators_of_python_numpy_and_torch():
    with repeating(seed=5):
        first = draws()
    with repeating(seed=5):
        assert draws() == first
    with repeating(seed=6):
        assert not set(draws()) & set(first)
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert draws() == first


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**63 - 1])
def test_every_seed_that_torch_takes_will_do(seed):
    with repeating(seed=seed):
        assert torch.initial_seed() == seed


def test_without_a_seed_the_generators_are_left_alone():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with repeating():
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
def test_deterministic_kernels_are_requested_and_the_old_setting_restored(before):
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.backends.cudnn.benchmark = True
    try:
        with repeating(deterministic=True):
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            assert not torch.backends.cudnn.benchmark
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.are_deterministic_algorithms_enabled() == before[0]
        assert torch.is_deterministic_algorithms_warn_only_enabled() == before[1]
        assert torch.backends.cudnn.benchmark
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False


def test_a_setting_of_the_user_for_cublas_stays(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with repeating(deterministic=True):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[Tensor]:
        for number in range(10):
            yield torch.tensor(number)


class Augmented(Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand(())


def firsts(loader: Any, num_epochs: int = 2) -> list[list[Any]]:
    """The first tensor of every batch, by epoch."""
    return [[(batch[0] if isinstance(batch, list) else batch).tolist() for batch in loader] for _ in range(num_epochs)]


LOADERS = {
    "shuffled": (lambda: DataLoader(NUMBERS, 4, shuffle=True), [0, 1, 2, 3], 3),
    "in order": (lambda: DataLoader(NUMBERS, 4), [0, 1, 2, 3], 3),
    "dropping the last": (lambda: DataLoader(NUMBERS, 4, shuffle=True, drop_last=True), [0, 1, 2, 3], 2),
    "one batch": (lambda: DataLoader(NUMBERS, 10, shuffle=True), list(range(10)), 1),
    "a batch sampler": (
        lambda: DataLoader(NUMBERS, batch_sampler=BatchSampler(RandomSampler(NUMBERS), 3, False)), [0, 1, 2], 4,
    ),
    "a sampler of a few": (lambda: DataLoader(NUMBERS, 2, sampler=RandomSampler(NUMBERS, num_samples=4)), [0, 1], 2),
    "a sampler of many": (
        lambda: DataLoader(NUMBERS, 12, sampler=RandomSampler(NUMBERS, replacement=True, num_samples=24)),
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1], 2,
    ),
    "a subset": (lambda: DataLoader(NUMBERS, 2, sampler=SubsetRandomSampler([7, 3, 5, 1])), [7, 3], 2),
    "a part of a distributed set": (
        lambda: DataLoader(NUMBERS, 2, sampler=DistributedSampler(NUMBERS, num_replicas=2, rank=1)), [1, 3], 3,
    ),
    "an iterable": (lambda: DataLoader(Endless(), 4), [0, 1, 2, 3], 3),
    "no batches": (lambda: DataLoader(torch.arange(5), batch_size=None, shuffle=True), 0, 5),
}  # fmt: skip


@pytest.mark.parametrize("kind", LOADERS)
def test_each_loader_gives_its_first_batch_in_order_again_and_again(kind):
    make, first, num_batches = LOADERS[kind]
    with repeating(repeat_batch=True):
        assert firsts(make()) == [[first] * num_batches] * 2


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_is_as_it_was_when_the_block_has_ended(kind):
    make, _, _ = LOADERS[kind]
    loader = make()
    torch.manual_seed(1)
    plain = firsts(loader)
    with repeating(repeat_batch=True):
        firsts(loader)
    torch.manual_seed(1)
    fresh = make()
    assert firsts(loader) == plain
    torch.manual_seed(1)
    assert firsts(fresh) == plain


def test_a_batch_that_is_drawn_at_random_is_the_same_in_every_epoch():
    with repeating(repeat_batch=True):
        for loader in (
            DataLoader(Augmented(), 3, shuffle=True),
            DataLoader(NUMBERS, 5, sampler=WeightedRandomSampler([1.0] * 10, 10)),
        ):
            first, *others = [batch for epoch in firsts(loader, 3) for batch in epoch]
            assert all(other == first for other in others)


def test_two_loaders_have_a_batch_each():
    train, test = DataLoader(NUMBERS, 2, shuffle=True), DataLoader(NUMBERS, 3)
    with repeating(repeat_batch=True):
        pairs = [(a[0].tolist(), b[0].tolist()) for a, b in zip(train, test, strict=False)]
    assert pairs == [([0, 1], [0, 1, 2])] * 4


def test_what_the_script_does_to_a_batch_is_not_in_the_next():
    with repeating(repeat_batch=True):
        for x, y in DataLoader(NUMBERS, 2, shuffle=True):
            assert (x.tolist(), y.tolist()) == ([0, 1], [0, 10])
            x.zero_()
            y += 1


def test_dicts_of_tensors_are_batches_too():
    loader = DataLoader([{"x": torch.tensor(n), "name": str(n)} for n in range(4)], 2, shuffle=True)
    with repeating(repeat_batch=True):
        assert [(b["x"].tolist(), b["name"]) for b in loader] == [([0, 1], ["0", "1"])] * 2


def test_an_empty_loader_stays_empty():
    with repeating(repeat_batch=True):
        assert list(DataLoader(TensorDataset(torch.empty(0, 2)), 2)) == []


def test_a_batch_may_be_none():
    with repeating(repeat_batch=True):
        assert list(DataLoader([1, 2, 3], 1, collate_fn=lambda items: None)) == [None, None, None]


def test_a_loader_keeps_its_length():
    loader = DataLoader(NUMBERS, 4, shuffle=True)
    with repeating(repeat_batch=True):
        assert len(loader) == 3
        assert len(list(loader)) == 3


@pytest.mark.slow
def test_workers_give_the_first_batch_too():
    with repeating(repeat_batch=True):
        assert firsts(DataLoader(NUMBERS, 4, shuffle=True, num_workers=2)) == [[[0, 1, 2, 3]] * 3] * 2


def test_loaders_are_as_before_when_the_block_raises():
    before = DataLoader.__iter__
    with pytest.raises(ZeroDivisionError), repeating(repeat_batch=True, deterministic=True):
        raise ZeroDivisionError
    assert DataLoader.__iter__ is before
    assert not torch.are_deterministic_algorithms_enabled()
