"""Random generators that reading a sample draws from, of which workers get copies; not those that they seed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from roundoff.watch.facts.data_loaders import copied_generators

SHARED = np.random.default_rng(0)


class Draws(Dataset[Any]):
    def __init__(self) -> None:
        self.rng = np.random.RandomState(0)
        self.unused = torch.Generator()

    def __getitem__(self, index: int) -> float:
        return self.noise() * index

    def noise(self) -> float:
        return float(self.rng.normal())


class Crop:
    def __init__(self) -> None:
        self.random = random.Random(0)

    def __call__(self, x: int) -> float:
        return x + self.random.random()


class Crops(Dataset[Any]):
    def __init__(self) -> None:
        self.transforms = [Crop()]

    def __getitem__(self, index: int) -> float:
        return self.transforms[0](index)


class OfTheFile(Dataset[Any]):
    def __getitem__(self, index: int) -> float:
        return float(SHARED.normal())


class MadeInTheWorker(Draws):
    def __getitem__(self, index: int) -> float:
        info = get_worker_info()
        self.rng = np.random.RandomState(0 if info is None else info.id)
        return float(self.rng.normal())


class SeededByIndex(Draws):
    def __getitem__(self, index: int) -> float:
        self.rng.seed(index)
        return float(self.rng.normal())


class DrawnBefore(Draws):
    def __getitem__(self, index: int) -> float:
        return float(index)

    def shuffle(self) -> None:
        self.rng.shuffle([1, 2])


def test_generators_that_reading_draws_from_are_named() -> None:
    assert copied_generators(Draws()) == ("rng",)
    assert copied_generators(Subset(Draws(), [0])) == ("rng",)
    assert copied_generators(Crops()) == ("random",)
    assert copied_generators(OfTheFile()) == ("SHARED",)


def test_generators_that_are_seeded_or_not_drawn_from_are_not() -> None:
    assert [copied_generators(kind()) for kind in (MadeInTheWorker, SeededByIndex, DrawnBefore)] == [()] * 3
    assert copied_generators([1, 2, 3]) == ()
