"""Batches, and the draws they are made from, which depend only on seed, epoch and position."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from roundoff.errors import DataError

IGNORED = -100
"""The target of a place that counts for nothing: padding, or an image that could not be read."""

PADDING = -1
"""The index of a sample that only fills a batch up."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Which samples make a batch, and the seed of everything random about it.

    A batch is a function of its draw alone. So it does not matter which worker makes it, or whether the training was
    interrupted before it.
    """

    indices: tuple[int, ...]
    seed: int = 0

    def generator(self, stream: int = 0) -> np.random.Generator:
        """Return a new random generator for this batch; other streams give other numbers."""
        return np.random.default_rng((self.seed, stream))


class Batch(NamedTuple):
    """The inputs of the model and their targets."""

    inputs: Tensor
    targets: Tensor
    """The class of each image, or the next byte after each byte; `IGNORED` where there is no target."""
    other_targets: Tensor | None = None
    """With mixup, the targets of the images mixed in."""
    share: float = 1.0
    """With mixup, the share of the image that `targets` belongs to."""
    num_unreadable: int = 0
    """The number of images that could not be read; their targets are `IGNORED`."""
    unreadable: str = ""
    """The path of one of them."""

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        others = None if self.other_targets is None else self.other_targets.to(device, non_blocking=True)
        return self._replace(
            inputs=self.inputs.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            other_targets=others,
        )


class Samples(Protocol):
    """A collection of samples, from which batches are made."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, draw: Draw) -> Batch:
        """Return the batch that was drawn."""


def targets_at(targets: Tensor, indices: Tensor) -> Tensor:
    """Return the targets of the drawn samples, `IGNORED` for padding."""
    return torch.where(indices == PADDING, IGNORED, targets[indices])


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
                yield Draw(tuple(chosen), seed_from(self._seed, self._epoch, step, nth, self._rank))

    def _order(self) -> list[int]:
        generator = torch.Generator().manual_seed(seed_from(self._seed, self._epoch))
        order: list[int] = torch.randperm(self._num_samples, generator=generator).tolist()
        return order


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
