"""Loaders keep their numbers, also when they are made anew for each epoch; other data gets another number."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from roundoff.watch.facts.data_loaders import LoaderNumbers, dataset_content


def number(numbers: LoaderNumbers, loader: DataLoader) -> int:
    return numbers.number_of(loader, dataset_content(loader.dataset))


def test_a_loader_keeps_its_number():
    numbers = LoaderNumbers()
    train, test = DataLoader(TensorDataset(torch.zeros(4))), DataLoader(TensorDataset(torch.ones(4)))
    assert [number(numbers, loader) for loader in (train, test, train, test)] == [0, 1, 0, 1]


def test_a_loader_over_other_data_does_not_get_the_number_of_one_that_is_gone():
    numbers = LoaderNumbers()
    found = []
    for task in range(3):
        loader = DataLoader(TensorDataset(torch.full((4,), float(task))))
        found.append(number(numbers, loader))
        del loader
    assert found == [0, 1, 2]


def test_a_loader_that_is_made_anew_for_each_epoch_over_the_same_data_has_one_number():
    numbers, x = LoaderNumbers(), torch.randn(4)
    assert {number(numbers, DataLoader(TensorDataset(x))) for _ in range(3)} == {0}
    words = TensorDataset(torch.ones(2))
    assert {number(numbers, DataLoader(words)) for _ in range(3)} == {1}


def test_two_loaders_over_the_same_data_at_the_same_time_are_two():
    numbers, data = LoaderNumbers(), TensorDataset(torch.randn(4))
    shuffled, plain = DataLoader(data, shuffle=True), DataLoader(data)
    assert [number(numbers, loader) for loader in (shuffled, plain)] == [0, 1]


def test_a_data_set_that_cannot_be_referred_to_weakly_is_numbered_too():
    numbers = LoaderNumbers()
    first = DataLoader([1.0, 2.0])
    assert number(numbers, first) == 0
    assert number(numbers, DataLoader([3.0])) == 1
