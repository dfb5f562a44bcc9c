"""Hashes of tensors' values, as a run keeps them: equal values have equal hashes, on every device and rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from roundoff.kernels import row as at
from roundoff.kernels.summaries import summarize
from roundoff.runs import HashColumns, Interned


def hash_of(x: Tensor) -> int:
    """Return the hash of a tensor's values; one pass over its memory."""
    return hash_in(summarize(x))


def hash_in(row: NDArray[np.float64]) -> int:
    """Return the hash that a summary holds."""
    return int(row[at.HASH : at.HASH + 1].view(np.uint64)[0])


def hash_columns(step: int, kind: str, hashes: Sequence[tuple[str, int]]) -> HashColumns:
    """Lay out the hashes of one kind, each with its name, for the run."""
    return HashColumns(
        step=np.full(len(hashes), step, dtype=np.int32),
        microbatch=np.zeros(len(hashes), dtype=np.int16),
        kind=Interned.of([kind] * len(hashes)),
        name=Interned.of([name for name, _ in hashes]),
        hash=np.array([number for _, number in hashes], dtype=np.uint64),
    )
