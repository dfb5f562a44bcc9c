"""Norms and shares of every parameter at one step: weights, gradients and the update between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roundoff.kernels import row as columns
from roundoff.kernels.compiled import widest_float
from roundoff.kernels.host_copies import Reading
from roundoff.kernels.summaries import summarize
from roundoff.record.loop.sites import Sites
from roundoff.runs import Interned, ParameterColumns
from roundoff.torch_private import foreach_norm
from roundoff.watch.device_measures import DeviceMeasures, MeasuredParameter, dense, group_for_device

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
