"""Chooses the samples of each step of each rank, as a function of seed, epoch and position only, and loads them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from roundoff.errors import DataError
from roundoff.train.data.batch import PADDING, Batch, Draw, Samples


class TrainSampler(Sampler[Draw]):
    """Draws the microbatches of one rank: a new order in each epoch, and for each rank its share of every batch.

    The batch of a step does not depend on the number of ranks, only its division does. Samples left over at the end of
    an epoch, too few for a batch, are used in another epoch.
    """

    def __init__(
        self, num_samples: int, *, batch_size: int, accumulate: int, seed: int, rank: int, num_ranks: int
    ) -> None:
        if num_samples < batch_size:
            raise DataError.explain(
                f"{num_samples} training samples do not fill one batch of {batch_size}.",
                fix=f"use a smaller batch, --batch-size {2 ** max(0, num_samples.bit_length() - 1)}, or more data.",
            )
        self.steps_per_epoch = num_samples // batch_size
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._accumulate = accumulate
        self._share = batch_size // num_ranks
        self._seed, self._rank = seed, rank
        self._epoch, self._first_step = 0, 0

    def begin(self, *, epoch: int, first_step: int = 0) -> None:
        """Set the epoch and the step at which the next iteration starts."""
        self._epoch, self._first_step = epoch, first_step

    def __len__(self) -> int:
        return (self.steps_per_epoch - self._first_step) * self._accumulate

    def __iter__(self) -> Iterator[Draw]:
        order = self._order()
        micro = self._share // self._accumulate
        for step in range(self._first_step, self.steps_per_epoch):
            start = step * self._batch_size + self._rank * self._share
            for nth in range(self._accumulate):
                chosen = order[start + nth * micro : start + (nth + 1) * micro]
                yield Draw(tuple(chosen), self._seed_of(step, nth))

    def _order(self) -> list[int]:
        generator = torch.Generator().manual_seed(seed_from(self._seed, self._epoch))
        order: list[int] = torch.randperm(self._num_samples, generator=generator).tolist()
        return order

    def _seed_of(self, step: int, nth: int) -> int:
        return seed_from(self._seed, self._epoch, step, nth, self._rank)


class EvalSampler(Sampler[Draw]):
    """Draws every sample once, in order, distributed over the ranks; padding makes all batches equally long."""

    def __init__(self, num_samples: int, *, batch_size: int, rank: int, num_ranks: int) -> None:
        self._num_samples = num_samples
        self._batch_size = max(1, min(batch_size, -(-num_samples // num_ranks)))
        self._rank, self._num_ranks = rank, num_ranks

    def __len__(self) -> int:
        return -(-self._num_samples // (self._batch_size * self._num_ranks))

    def __iter__(self) -> Iterator[Draw]:
        for nth in range(len(self)):
            start = (nth * self._num_ranks + self._rank) * self._batch_size
            places = range(start, start + self._batch_size)
            yield Draw(tuple(place if place < self._num_samples else PADDING for place in places))


def seed_from(*numbers: int) -> int:
    """Combine numbers into one seed, such that similar numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def loader_of(
    samples: Samples, sampler: Sampler[Draw], *, workers: int, seed: int, pin_memory: bool
) -> DataLoader[Batch]:
    """Return a loader of the batches that `sampler` draws from `samples`.

    It has its own generator: iterating does not advance torch's, so that a resumed training draws the same samples as
    an uninterrupted one.
    """
    return DataLoader(
        cast(Dataset[Batch], samples),
        batch_size=None,
        sampler=sampler,
        collate_fn=_as_it_is,
        num_workers=workers,
        persistent_workers=workers > 0,
        worker_init_fn=_seed_worker if workers else None,
        generator=torch.Generator().manual_seed(seed),
        pin_memory=pin_memory,
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def _seed_worker(worker: int) -> None:
    """Seed the global generators, which a data set might use, and leave the cores to the training."""
    info = get_worker_info()
    assert info is not None
    random.seed(info.seed)
    np.random.seed(info.seed % 2**32)
    torch.set_num_threads(1)
