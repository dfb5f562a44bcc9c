"""Hashes of the values of tensors, by which ranks that should agree are compared after the run.

Equal values have equal hashes on every device and rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from roundoff.kernels import row as columns
from roundoff.kernels.host_copies import HostCopies, Reading
from roundoff.kernels.summaries import summarize
from roundoff.replay.rank_consensus import num_ranks
from roundoff.runs import Failure, HashColumns, Interned, RunWriter
from roundoff.torch_private import hidden_from_modes, keep_process_group, local_tensor

_STEPS_IN_FULL = 20
_INTERVAL = 10
_MAX_STEPS = 1000


def hash_of(x: Tensor) -> int:
    """Return the hash of a tensor's values; one pass over its memory."""
    return hash_in(summarize(x))


def hash_in(row: NDArray[np.float64]) -> int:
    """Return the hash in a summary."""
    return int(row[columns.HASH : columns.HASH + 1].view(np.uint64)[0])


def hash_columns(step: int, kind: str, hashes: Sequence[tuple[str, int]], *, microbatch: int = 0) -> HashColumns:
    """Lay out named hashes of one kind as columns of the run."""
    return HashColumns(
        step=np.full(len(hashes), step, dtype=np.int32),
        microbatch=np.full(len(hashes), microbatch, dtype=np.int16),
        kind=Interned.of([kind] * len(hashes)),
        name=Interned.of([name for name, _ in hashes]),
        hash=np.array([number for _, number in hashes], dtype=np.uint64),
    )


class RankHashes:
    """Writes hashes in the first steps and in every tenth step after that, in the same steps on every rank."""

    def __init__(self, writer: RunWriter, copies: HostCopies | None = None) -> None:
        self._writer = writer
        self._copies = copies or HostCopies()
        self._num_steps = 0
        self._last_step = -1

    def wants(self, step: int) -> bool:
        """Say whether to hash in this step."""
        if num_ranks() == 1 or (step >= _STEPS_IN_FULL and step % _INTERVAL):
            return False
        if step != self._last_step:
            # Reading gradients gives them Python objects, after which freeing their process group could deadlock.
            keep_process_group(dist.group.WORLD)
            self._last_step = step
            self._num_steps += 1
        return self._num_steps <= _MAX_STEPS

    def write(self, step: int, kind: str, tensors: Iterable[tuple[str, Tensor | None]]) -> None:
        """Write the hashes of named tensors; of those on an accelerator when the copies are delivered."""
        self._copies.read(self._write(step, kind, tensors))

    def _write(self, step: int, kind: str, tensors: Iterable[tuple[str, Tensor | None]]) -> Reading[None]:
        found: dict[str, Tensor] = {}
        with hidden_from_modes():
            for name, x in tensors:
                local = None if x is None else local_tensor(x)
                plain = x if local is None else local
                if plain is not None and not plain.is_sparse and not plain.is_meta:
                    found[name] = plain.detach()
        host = yield list(found.values())
        try:
            with hidden_from_modes():
                hashes = [(name, hash_of(x)) for name, x in zip(found, host, strict=True)]
            if hashes:
                self._writer.write_hashes(hash_columns(step, kind, hashes))
        except Exception as error:  # the caller has other copies to deliver
            self._writer.write(Failure.of(error, check="fact", name="hashes", step=step))
