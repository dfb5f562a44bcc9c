"""Makes a training repeatable: seeded generators, deterministic kernels, the first batch in every step."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SubsetRandomSampler


@contextlib.contextmanager
def repeatable(*, seed: int | None, deterministic: bool, repeat_batch: bool) -> Iterator[None]:
    """Make a training repeatable inside the block, to compare it with another implementation.

    Args:
        seed: seeds the generators of Python, numpy and torch, on every device.
        deterministic: use deterministic kernels; ops without one run with a warning.
        repeat_batch: switch shuffling off and yield the first batch of each DataLoader in every step.
    """
    with contextlib.ExitStack() as stack:
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
        if deterministic:
            stack.enter_context(_deterministic())
        if repeat_batch:
            stack.enter_context(_same_batch())
        yield


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            del os.environ["CUBLAS_WORKSPACE_CONFIG"]


@contextlib.contextmanager
def _same_batch() -> Iterator[None]:
    original = DataLoader.__iter__
    kept: WeakKeyDictionary[DataLoader[Any], Any] = WeakKeyDictionary()
    with contextlib.ExitStack() as restoring:

        @functools.wraps(original)
        def first_batch_for_ever(loader: DataLoader[Any]) -> Iterator[Any]:
            _stop_shuffling(loader, restoring)
            for batch in original(loader):
                if loader not in kept:
                    kept[loader] = batch
                yield copy.deepcopy(kept[loader])

        restoring.callback(setattr, DataLoader, "__iter__", original)
        DataLoader.__iter__ = first_batch_for_ever  # type: ignore[assignment, method-assign]
        yield


def _stop_shuffling(loader: DataLoader[Any], restoring: contextlib.ExitStack) -> None:
    """Make the loader go through its data in order until `restoring` ends."""
    owner = loader if loader.batch_sampler is None else loader.batch_sampler
    sampler = getattr(owner, "sampler", None)
    if isinstance(sampler, DistributedSampler) and sampler.shuffle:
        sampler.shuffle = False
        restoring.callback(setattr, sampler, "shuffle", True)
    elif (in_order := _in_order(sampler)) is not None:
        # not setattr: a DataLoader refuses to have its sampler changed
        vars(owner)["sampler"] = in_order
        restoring.callback(vars(owner).__setitem__, "sampler", sampler)


def _in_order(sampler: Any) -> Sequence[int] | None:
    """Return the indices that a sampler draws, in order; None if it does not shuffle, or does more than that."""
    if isinstance(sampler, RandomSampler):
        num_items = len(sampler.data_source)
        if sampler.num_samples <= num_items:
            return range(sampler.num_samples)
        return [index % num_items for index in range(sampler.num_samples)]
    return list(sampler.indices) if isinstance(sampler, SubsetRandomSampler) else None
