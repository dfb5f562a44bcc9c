"""Random numbers that the loop draws: whether a line draws in a step what it drew in an earlier one."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from roundoff.record.source_lines import shown_path
from roundoff.runs import RandomDrawsProbe
from roundoff.watch.facts.tensor_hashes import hash_of

MIN_ELEMENTS = 8
"""Fewer numbers may agree by chance, at least those of a coarse format."""
_MAX_ELEMENTS = 2**22
_MAX_LINES = 16
_NUM_REPEATED = 8
"""So many draws that repeat earlier steps are enough to say so."""
_MAX_KEPT = 2000


@dataclass(slots=True)
class _Draws:
    """What one line drew in one shape."""

    first_step: int
    seen: dict[int, int] = field(default_factory=dict)
    """The step in which each hash was drawn first."""
    steps: set[int] = field(default_factory=set)
    num_repeated: int = 0
    is_written: bool = False


class RandomDraws:
    """Compares the numbers that each line of the loop draws, where gradients are enabled, with those it drew before.

    Tensors on an accelerator are left alone: hashing them would mean waiting.
    """

    def __init__(self) -> None:
        self._draws: dict[tuple[str, int, tuple[int, ...]], _Draws] = {}

    def see(self, function: str, x: Tensor, *, step: int, line: tuple[str, int] | None) -> RandomDrawsProbe | None:
        """Look at what was drawn; return what is known about the line when it has repeated itself often enough."""
        if line is None or not torch.is_grad_enabled() or not _is_readable(x):
            return None
        key = (*line, tuple(x.shape))
        draws = self._draws.get(key)
        if draws is None:
            if len(self._draws) >= _MAX_LINES:
                return None
            draws = self._draws[key] = _Draws(first_step=step)
        if draws.is_written or len(draws.seen) >= _MAX_KEPT or len(draws.steps) >= _MAX_KEPT:
            return None
        number = hash_of(x)
        draws.num_repeated += draws.seen.setdefault(number, step) < step
        draws.steps.add(step)
        if draws.num_repeated < _NUM_REPEATED:
            return None
        draws.is_written = True
        return RandomDrawsProbe(
            step=step,
            first_step=draws.first_step,
            function=function,
            source=f"{shown_path(line[0])}:{line[1]}",
            shape=tuple(x.shape),
            num_steps=len(draws.steps),
            num_distinct=len(draws.seen),
            hash=f"{number:016x}",
        )


def _is_readable(x: Tensor) -> bool:
    is_plain = x.is_cpu and x.layout is torch.strided and x.is_floating_point() and not x.is_meta
    return is_plain and x.dim() > 0 and MIN_ELEMENTS <= x.numel() <= _MAX_ELEMENTS
