"""Makes a training repeat itself: every generator seeded, deterministic kernels, the first batch again and again."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler


@contextlib.contextmanager
def repeatable(*, seed: int | None, deterministic: bool, repeat_batch: bool) -> Iterator[None]:
    """Line a training up with another implementation of it, inside the block.

    Args:
        seed: set the generators of Python, numpy and torch (on every device) to this.
        deterministic: ask torch for deterministic kernels; ops that have none warn and run.
        repeat_batch: switch shuffling off and give each DataLoader's first batch over and over.
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


@contextlib.contextmanager
def _same_batch() -> Iterator[None]:
    original = DataLoader.__iter__

    @functools.wraps(original)
    def first_batch_for_ever(loader: DataLoader[Any]) -> Iterator[Any]:
        _stop_shuffling(loader)
        batches = original(loader)
        first = next(batches, None)
        if first is None:
            return
        yield copy.deepcopy(first)
        for _ in batches:
            yield copy.deepcopy(first)

    DataLoader.__iter__ = first_batch_for_ever  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        DataLoader.__iter__ = original  # type: ignore[method-assign]


def _stop_shuffling(loader: DataLoader[Any]) -> None:
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            sampler.shuffle = False
    inner = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(inner, RandomSampler):
        loader.batch_sampler.sampler = SequentialSampler(loader.dataset)  # type: ignore[union-attr, arg-type]
