"""Hashes of gradients, weights and buffers, by which ranks that should agree are held against each other afterwards."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist
from torch import Tensor

from roundoff.record.torch_private import hidden_from_modes, keep_process_group, local_tensor
from roundoff.runs import RunWriter
from roundoff.watch.tensor_hashes import hash_columns, hash_of
from roundoff.watch.together import num_ranks

_STEPS_IN_FULL = 20
_INTERVAL = 10
_MOST_STEPS = 1000


class RankHashes:
    """Writes hashes in the first steps and in every tenth after; the same steps on every rank."""

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self._num_steps = 0
        self._last_step = -1

    def wants(self, step: int) -> bool:
        """Say whether the hashes of this step are to be taken."""
        if num_ranks() == 1 or (step >= _STEPS_IN_FULL and step % _INTERVAL):
            return False
        if step != self._last_step:
            # Looking at gradients gives them Python objects, and freeing their group could then wait for ever.
            keep_process_group(dist.group.WORLD)
            self._last_step = step
            self._num_steps += 1
        return self._num_steps <= _MOST_STEPS

    def write(self, step: int, kind: str, tensors: Iterable[tuple[str, Tensor | None]]) -> None:
        """Write the hashes of named tensors."""
        found: list[tuple[str, int]] = []
        with hidden_from_modes():
            for name, x in tensors:
                local = None if x is None else local_tensor(x)
                plain = x if local is None else local
                if plain is not None and not plain.is_sparse and not plain.is_meta:
                    found.append((name, hash_of(plain.detach())))
        if found:
            self._writer.write_hashes(hash_columns(step, kind, found))
