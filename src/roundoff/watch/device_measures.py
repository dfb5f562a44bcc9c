"""Sums over parameters that are on an accelerator: few kernels, little of its memory, and no wait.

Small parameters are measured many at a time, as rows of one matrix; large ones by themselves, in pieces.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from roundoff.kernels.compiled import widest_float
from roundoff.kernels.host_copies import stage
from roundoff.torch_private import foreach_norm

_PIECE_BYTES = 96 * 2**20
"""So much of a large parameter is measured at a time: that takes twice as much memory."""
_SMALL_BYTES = 2**16
_BATCH_BYTES = 4 * 2**20
"""So many small parameters are measured together, padded: that takes twice as much memory, too."""
_ROW = 512

_L2, _ABSMAX, _GRAD_L2, _GRAD_ABSMAX, _NUM_NONZERO, _NUM_NORMAL, _NUM_CHANGED, _UPDATE_L2 = range(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredParameter:
    """A parameter and the gradient that its update will use."""

    parameter: Tensor
    gradient: Tensor | None
    """Of a sparse one, the values it has."""
    rows: Tensor | None = None
    """Where in the parameter these are, if the gradient is sparse."""

    @property
    def is_small(self) -> bool:
        """Whether it is measured together with others."""
        x, gradient = self.parameter, self.gradient
        is_alike = gradient is not None and gradient.dtype == x.dtype and gradient.device == x.device
        return is_alike and x.layout is torch.strided and self.rows is None and x.nbytes <= _SMALL_BYTES


class DeviceMeasures:
    """What is measured together: many small parameters or a large one; made before the update.

    Args:
        places: where the parameters are in the caller's list.
        parameters: all on one device and in one format.
    """

    def __init__(self, places: Sequence[int], parameters: Sequence[MeasuredParameter]) -> None:
        self.places = places
        self._parameters = parameters
        self._is_batch = parameters[0].is_small
        all_values = [dense(one.parameter) for one in parameters]
        self._before = stage(_matrix(all_values) if self._is_batch else all_values[0])
        """On the host, if the device can copy to it without waiting."""

    def sums(self) -> Tensor:
        """Return, without waiting, one column of sums for each row of a batch or piece of a large parameter."""
        first = self._parameters[0]
        if self._is_batch:
            return torch.stack(_sums_by_row(self._parameters, self._before))
        after, gradient = dense(first.parameter), first.gradient
        parts = [after, self._before, *([] if gradient is None else [gradient])]
        if after.nbytes <= _PIECE_BYTES or first.rows is not None or not all(x.is_contiguous() for x in parts):
            return torch.stack(_sums(after, self._before, gradient, rows=first.rows))[:, None]
        pieces = zip(*(x.view(-1).split(_PIECE_BYTES // after.element_size()) for x in parts), strict=True)
        return torch.stack([torch.stack(_sums(*piece)) for piece in pieces], dim=1)

    def rows(self, sums: Tensor) -> Iterator[list[float]]:
        """Return the numbers of each parameter, in the order of the table's columns, from its sums on the host."""
        numbers = sums.double().numpy()
        first = 0
        for one in self._parameters:
            end = first + _num_rows(one.parameter) if self._is_batch else numbers.shape[1]
            yield _row_of(one, numbers[:, first:end])
            first = end


def group_for_device(parameters: Sequence[tuple[int, MeasuredParameter]]) -> list[DeviceMeasures]:
    """Group parameters by device and format so that small ones are measured together."""
    found = [DeviceMeasures([place], [one]) for place, one in parameters if not one.is_small]
    batches: dict[tuple[torch.device, torch.dtype], list[tuple[int, MeasuredParameter]]] = {}
    filled: dict[tuple[torch.device, torch.dtype], int] = {}
    for place, one in parameters:
        if not one.is_small:
            continue
        kind = one.parameter.device, one.parameter.dtype
        batches.setdefault(kind, []).append((place, one))
        filled[kind] = filled.get(kind, 0) + _num_rows(one.parameter) * _ROW * one.parameter.element_size()
        if filled[kind] >= _BATCH_BYTES:
            found.append(_batch_of(batches.pop(kind)))
            filled[kind] = 0
    return found + [_batch_of(batch) for batch in batches.values()]


def _batch_of(parameters: Sequence[tuple[int, MeasuredParameter]]) -> DeviceMeasures:
    return DeviceMeasures([place for place, _ in parameters], [one for _, one in parameters])


def dense(x: Tensor) -> Tensor:
    """Return a tensor without its graph; of a sparse one, the values it has."""
    x = x.detach()
    return x.coalesce().values() if x.layout is torch.sparse_coo else x


def _num_rows(x: Tensor) -> int:
    return -(-x.numel() // _ROW)


def _matrix(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors below each other, in rows that are filled up with zeros: one kernel for all."""
    zeros = torch.zeros(_ROW, dtype=tensors[0].dtype, device=tensors[0].device)
    parts = ((x.detach().reshape(-1), zeros[: -x.numel() % _ROW]) for x in tensors)
    return torch.cat(list(itertools.chain.from_iterable(parts))).view(-1, _ROW)


def _sums_by_row(parameters: Sequence[MeasuredParameter], before: Tensor) -> list[Tensor]:
    """Return norms and counts of each row of a batch; at no moment this takes more than twice its memory."""
    norms = partial(torch.linalg.vector_norm, dim=1, dtype=widest_float(parameters[0].parameter.device))
    after = _matrix([one.parameter for one in parameters])
    change = before.to(after.device, non_blocking=True).sub_(after)
    after = torch.nan_to_num_(after, 0.0, 0.0, 0.0)
    l2, absmax, update_l2 = norms(after, 2), norms(after, math.inf), norms(change, 2)
    del after
    gradient = _matrix([one.gradient for one in parameters if one.gradient is not None])
    num_changed = norms(change.logical_and_(gradient), 1)
    del change
    num_nonzero, num_normal = norms(gradient, 0), norms(_without_subnormals(gradient), 0)
    gradient = torch.nan_to_num_(gradient, 0.0, 0.0, 0.0)
    counts = (num_nonzero, num_normal, num_changed)
    return [l2, absmax, norms(gradient, 2), norms(gradient, math.inf), *counts, update_l2]


def _sums(after: Tensor, before: Tensor, gradient: Tensor | None = None, *, rows: Tensor | None = None) -> list[Tensor]:
    """Return norms and counts of a part of a parameter; at no moment this takes more than twice its memory.

    These are eleven kernels; with the one that stacks the result, twelve.
    """
    wide = widest_float(after.device)
    norms = partial(foreach_norm, dtype=wide)
    change = before.to(after.device, non_blocking=True).sub_(after)
    (update_l2,) = norms([change], 2)
    if gradient is None:
        finite = [torch.nan_to_num(after, 0.0, 0.0, 0.0)]
        return [*norms(finite, 2), *norms(finite, math.inf), *[torch.full_like(update_l2, math.nan)] * 5, update_l2]
    touched = change if rows is None else change[tuple(rows)]
    num_changed = touched.logical_and_(gradient).sum(dtype=wide)
    del change, touched
    num_nonzero, num_normal = (norms([x], 0)[0] for x in (gradient, _without_subnormals(gradient)))
    finite = [torch.nan_to_num(x, 0.0, 0.0, 0.0) for x in (after, gradient)]
    (l2, gradient_l2), (absmax, gradient_absmax) = norms(finite, 2), norms(finite, math.inf)
    return [l2, absmax, gradient_l2, gradient_absmax, num_nonzero, num_normal, num_changed, update_l2]


def _without_subnormals(x: Tensor) -> Tensor:
    fmt = torch.finfo(x.dtype)
    return torch.nn.functional.hardshrink(x, fmt.smallest_normal * (1 - fmt.eps))


def _row_of(one: MeasuredParameter, sums: np.ndarray) -> list[float]:
    l2, gradient_l2, update_l2 = (float(np.sqrt(np.square(sums[at]).sum())) for at in (_L2, _GRAD_L2, _UPDATE_L2))
    absmax, gradient_absmax = (float(sums[at].max()) for at in (_ABSMAX, _GRAD_ABSMAX))
    num_nonzero, num_normal, num_changed = (float(sums[at].sum()) for at in (_NUM_NONZERO, _NUM_NORMAL, _NUM_CHANGED))
    count = 1 if one.gradient is None else max(one.gradient.numel(), 1)
    shares = [(count - num_nonzero) / count, (num_nonzero - num_normal) / count]
    changed = num_changed / num_nonzero if num_nonzero else math.nan
    return [l2, absmax, gradient_l2, gradient_absmax, *shares, changed, update_l2]
