"""Follows which rows of the weights get a gradient in the first steps: a unit whose row never does cannot learn."""

from __future__ import annotations

from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from roundoff.kernels.host_copies import Reading
from roundoff.record.loop.sites import Sites
from roundoff.record.structure import parameters_of
from roundoff.runs import GradientRowsProbe, RowsWithoutGradient
from roundoff.torch_private import has_no_memory

LOOKS = (3, 9, 19)
"""After these steps the rows are written down; what changes between two of them is only rare."""
_MIN_ROWS = 4
_MAX_ELEMENTS = 2**22
_MAX_RUNS = 64


class GradientRows:
    """Notes for each weight which of its rows have had a gradient other than 0; weights with all of them are done."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._weights: dict[int, tuple[ref[Tensor], Tensor]] = {}
        self._done: set[int] = set()
        self._num_steps = 0

    def gradients_ready(self, step: int, optimizer: Optimizer) -> None:
        """Look at the gradients that an optimizer will use."""
        if step > LOOKS[-1]:
            return
        with torch.no_grad():
            for parameter in parameters_of(optimizer):
                if id(parameter) not in self._done and _is_wanted(parameter):
                    self._see(parameter)

    def _see(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        rows = (parameter.grad.detach() != 0).flatten(1).any(1)
        known = self._weights.get(id(parameter))
        if known is not None and known[0]() is parameter:
            rows |= known[1]
        self._weights[id(parameter)] = (ref(parameter), rows)
        if rows.is_cpu and bool(rows.all()):
            self._done.add(id(parameter))
            del self._weights[id(parameter)]

    def step_ended(self, step: int) -> Reading[GradientRowsProbe | None]:
        """Count the step; after some steps, return the rows that have had no gradient so far."""
        self._num_steps += step <= LOOKS[-1]
        if step not in LOOKS:
            return None
        alive = [(x, rows) for kept, rows in self._weights.values() if (x := kept()) is not None]
        read = yield [rows for _, rows in alive]
        found = []
        for (parameter, _), rows in zip(alive, read, strict=True):
            name, runs = self._sites.of_parameter(parameter)[1], _runs_of_false(rows.tolist())
            if name is not None and runs and bool(rows.any()):
                found.append(RowsWithoutGradient(name=name, num_rows=len(rows), rows=tuple(runs[:_MAX_RUNS])))
        num = len(alive) + len(self._done)
        if step == LOOKS[-1]:
            self._weights = {}
        return GradientRowsProbe(step=step, num_steps=self._num_steps, num_weights=num, weights=tuple(found))


def _is_wanted(parameter: Tensor) -> bool:
    gradient = parameter.grad
    if gradient is None or type(gradient) is not Tensor or gradient.layout is not torch.strided:
        return False
    is_weight = gradient.dim() >= 2 and gradient.shape[0] >= _MIN_ROWS and 0 < gradient.numel() <= _MAX_ELEMENTS
    return is_weight and not has_no_memory(gradient)


def _runs_of_false(values: list[bool]) -> list[tuple[int, int]]:
    """Return where values are False, as pairs of a first place and the one after the last.

    >>> _runs_of_false([True, False, False, True, False])
    [(1, 3), (4, 5)]
    """
    found: list[tuple[int, int]] = []
    for place, value in enumerate(values):
        if value:
            continue
        if found and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
    return found
