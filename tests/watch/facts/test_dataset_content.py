"""What a data set holds is described so that a change shows, and reading it changes nothing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from roundoff.watch.facts.data_loaders import dataset_content


class Pictures(Dataset[Tensor]):
    def __init__(self) -> None:
        self.pictures = np.arange(12.0).reshape(3, 4)
        self.pictures.flags.writeable = False
        self.labels = [torch.tensor([1, 2]), "a word", torch.tensor(3)]

    def __getitem__(self, index: int) -> Tensor:
        raise AssertionError("a look takes no sample out: that may have effects")


def test_names_tensors_arrays_and_what_lies_in_lists() -> None:
    assert [entry.name for entry in dataset_content(Pictures())] == ["pictures", "labels[0]", "labels[2]"]
    inside = Subset(TensorDataset(torch.ones(3)), [0])
    assert [entry.name for entry in dataset_content(inside)] == ["dataset.tensors[0]"]
    assert dataset_content([(torch.ones(2), 1)])[0].name == "[0][0]"
    assert dataset_content(iter([1])) == ()


def test_a_sample_that_is_edited_in_place_changes_the_hash_and_the_statistics() -> None:
    data = TensorDataset(torch.arange(6.0).reshape(3, 2))
    before = dataset_content(data)
    assert dataset_content(data) == before
    data[2][0].mul_(2)
    after = dataset_content(data)
    assert after[0].hash != before[0].hash
    assert (before[0].mean, after[0].mean) == (2.5, 4.0)


def test_looks_at_the_beginning_of_what_is_large() -> None:
    data = TensorDataset(torch.zeros(2**10, 2**10))
    before = dataset_content(data)
    data.tensors[0][-1] = 1.0
    assert dataset_content(data) == before
    data.tensors[0][255] = 1.0
    assert dataset_content(data) != before
