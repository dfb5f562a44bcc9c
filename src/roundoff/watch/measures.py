"""Norms and shares of every parameter at one step: weights, gradients and the update between them.

On an accelerator they take few kernels, little of its memory and no wait: small parameters are measured many at a time,
as rows of one matrix; large ones by themselves, in pieces.
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

from roundoff.kernels import row as columns
from roundoff.kernels.compiled import widest_float
from roundoff.kernels.host_copies import Reading, stage
from roundoff.kernels.summaries import summarize
from roundoff.record.loop.sites import Sites
from roundoff.runs import Interned, ParameterColumns
from roundoff.torch_private import foreach_norm

_PIECE_BYTES = 96 * 2**20
"""A large parameter is measured in parts of this size, which takes twice as much memory."""
_SMALL_BYTES = 2**16
_BATCH_BYTES = 4 * 2**20
"""Small parameters of this size together are measured at once, padded, which takes twice as much memory, too."""
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


_NO_NUMBER = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterBeforeUpdate(MeasuredParameter):
    """One parameter of the CPU before its update."""

    before: Tensor


def gradient_norm(parameters: Sequence[Tensor]) -> Reading[tuple[float, int | None]]:
    """Return the norm of all gradients and the place of the first parameter whose gradient is not finite.

    One pass over the gradients; one tensor is read.
    """
    having = [(place, p.grad) for place, p in enumerate(parameters) if _is_readable(p.grad)]
    if not having:
        return _NO_NUMBER, None
    with torch.no_grad():
        gradients = [dense(grad) for _, grad in having if grad is not None]
        norms = foreach_norm(gradients, 2, dtype=min(map(_widest, gradients), key=lambda dtype: dtype.itemsize))
        together = torch.stack([norm.to(having[0][1].device) for norm in norms])  # type: ignore[union-attr]
    values = (yield [together])[0].tolist()
    bad = next((place for (place, _), value in zip(having, values, strict=True) if not math.isfinite(value)), None)
    return math.sqrt(
        math.fsum(value * value for value in values if math.isfinite(value))
    ) if bad is None else math.inf, bad


class ParameterMeasures:
    """Takes the table of parameters of one step: `begin` before the optimizer steps, `end` after."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._seen: list[MeasuredParameter] = []
        self._on_devices: list[DeviceMeasures] = []
        self.has_begun = False
        """Whether a step is being measured."""

    def begin(self, parameters: Sequence[Tensor]) -> None:
        """Keep weights as they are before the update, and the gradients it will use."""
        with torch.no_grad():
            self._seen = [_before_update(p) for p in parameters if _is_readable(p)]
            there = [(place, one) for place, one in enumerate(self._seen) if not one.parameter.is_cpu]
            self._on_devices = group_for_device(there)
        self.has_begun = bool(self._seen)

    def end(self, step: int) -> Reading[tuple[ParameterColumns | None, float | None]]:
        """Return the table of the step and the norm of the whole update."""
        seen, groups = self._seen, self._on_devices
        self.drop()
        if not seen:
            return None, None
        numbers = np.empty((len(seen), 8))
        with torch.no_grad():
            sums = [group.sums() for group in groups]
            for place, one in enumerate(seen):
                if isinstance(one, ParameterBeforeUpdate):
                    numbers[place] = _row(one)
        for group, found in zip(groups, (yield sums), strict=True):
            numbers[group.places] = list(group.rows(found))
        names = [self._sites.of_parameter(one.parameter) for one in seen]
        columns = ParameterColumns(
            step=np.full(len(seen), step, dtype=np.int32),
            parameter=Interned.of([name or f"<loop>[{place}]" for place, (_, name) in enumerate(names)]),
            site=Interned.of([self._sites.names[site] for site, _ in names]),
            num_elements=np.array([one.parameter.numel() for one in seen], dtype=np.int64),
            l2=numbers[:, 0],
            absmax=numbers[:, 1],
            grad_l2=_with_nulls(numbers[:, 2]),
            grad_absmax=_with_nulls(numbers[:, 3]),
            grad_zero_share=_with_nulls(numbers[:, 4]),
            grad_subnormal_share=_with_nulls(numbers[:, 5]),
            changed_fraction=_with_nulls(numbers[:, 6]),
            update_l2=_with_nulls(numbers[:, 7]),
        )
        return columns, float(np.sqrt(np.sum(numbers[:, 7] ** 2)))

    def drop(self) -> None:
        """Forget a step that did not happen."""
        self._seen, self._on_devices, self.has_begun = [], [], False


def _before_update(p: Tensor) -> MeasuredParameter:
    gradient, rows = None if p.grad is None else dense(p.grad), _rows(p.grad)
    if not p.is_cpu:
        return MeasuredParameter(parameter=p, gradient=gradient, rows=rows)
    return ParameterBeforeUpdate(parameter=p, gradient=gradient, rows=rows, before=p.detach().clone())


def _row(seen: ParameterBeforeUpdate) -> list[float]:
    after = dense(seen.parameter)
    weight = summarize(after)
    change = after - seen.before
    row = [_l2(weight), _absmax(weight)]
    if seen.gradient is None:
        return [*row, *[_NO_NUMBER] * 5, float(torch.linalg.vector_norm(change, dtype=torch.float64))]
    gradient = summarize(seen.gradient)
    count = max(seen.gradient.numel(), 1)
    with_gradient = count - float(gradient[columns.NUM_ZERO])
    touched = change if seen.rows is None else change[tuple(seen.rows)]
    moved = float((touched != 0).logical_and_(seen.gradient != 0).sum()) if with_gradient else 0.0
    return [
        *row,
        _l2(gradient),
        _absmax(gradient),
        float(gradient[columns.NUM_ZERO]) / count,
        float(gradient[columns.NUM_SUBNORMAL]) / count,
        moved / with_gradient if with_gradient else _NO_NUMBER,
        float(torch.linalg.vector_norm(change, dtype=torch.float64)),
    ]


def _widest(x: Tensor) -> torch.dtype:
    return widest_float(x.device)


def _with_nulls(values: np.ndarray) -> np.ndarray:
    return np.ma.masked_where(np.isnan(values), values)


def _l2(row: np.ndarray) -> float:
    return math.sqrt(float(row[columns.SUM_SQUARES]))


def _absmax(row: np.ndarray) -> float:
    return max(abs(float(row[columns.MIN])), abs(float(row[columns.MAX])))


def _is_readable(x: Tensor | None) -> bool:
    return (
        x is not None
        and x.is_floating_point()
        and x.numel() > 0
        and not x.is_meta
        and type(x.data) in (Tensor, torch.nn.Parameter)
    )


def _rows(gradient: Tensor | None) -> Tensor | None:
    is_sparse = gradient is not None and gradient.layout is torch.sparse_coo
    return gradient.detach().coalesce().indices() if is_sparse else None  # type: ignore[union-attr]
