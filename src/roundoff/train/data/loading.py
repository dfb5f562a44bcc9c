"""The loader: hands draws to workers and batches to the training, in order."""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from roundoff.train.data.batch import Batch, Draw, Samples


def loader_of(
    samples: Samples, sampler: Sampler[Draw], *, workers: int, seed: int, pin_memory: bool
) -> DataLoader[Batch]:
    """Return a loader of the batches that `sampler` draws from `samples`.

    It has a generator of its own: iterating does not move torch's, so a resumed training draws what an uninterrupted
    one would.
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
    """Seed what a data set might use besides its draw, and leave the cores to the training."""
    info = get_worker_info()
    assert info is not None
    random.seed(info.seed)
    np.random.seed(info.seed % 2**32)
    torch.set_num_threads(1)
