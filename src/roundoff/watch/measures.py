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
from roundoff.kernels.host_copies import Reading, stage
from roundoff.kernels.summaries import summarize
from roundoff.record.loop.sites import Sites
from roundoff.runs import Interned, ParameterColumns
from roundoff.torch_private import foreach_norm

_NO_NUMBER = float("nan")
_PIECE_BYTES = 96 * 2**20
"""So much of a parameter is measured at a time on an accelerator: that takes twice as much of its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterBeforeUpdate:
    """One parameter before its update."""

    parameter: Tensor
    before: Tensor
    """A copy; that of an accelerator's is on the host."""
    gradient: Tensor | None
    """Of a sparse one, the values it has."""
    rows: Tensor | None = None
    """Where in the parameter these are, if the gradient is sparse."""


def gradient_norm(parameters: Sequence[Tensor]) -> Reading[tuple[float, int | None]]:
    """Return the norm of all gradients and the place of the first parameter whose gradient is not finite.

    One pass over the gradients; one tensor is read.
    """
    having = [(place, p.grad) for place, p in enumerate(parameters) if _is_readable(p.grad)]
    if not having:
        return _NO_NUMBER, None
    with torch.no_grad():
        gradients = [_dense(grad) for _, grad in having if grad is not None]
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
        self._seen: list[ParameterBeforeUpdate] = []
        self.has_begun = False
        """Whether a step is being measured."""

    def begin(self, parameters: Sequence[Tensor]) -> None:
        """Keep weights as they are before the update, and the gradients it will use."""
        with torch.no_grad():
            self._seen = [
                ParameterBeforeUpdate(
                    parameter=p,
                    before=stage(p.detach()),
                    gradient=None if p.grad is None else _dense(p.grad),
                    rows=_rows(p.grad),
                )
                for p in parameters
                if _is_readable(p)
            ]
        self.has_begun = bool(self._seen)

    def end(self, step: int) -> Reading[tuple[ParameterColumns | None, float | None]]:
        """Return the table of the step and the norm of the whole update."""
        seen, self._seen, self.has_begun = self._seen, [], False
        if not seen:
            return None, None
        with torch.no_grad():
            rows = [_row(one) if one.parameter.is_cpu else _sums_on_device(one) for one in seen]
        fetched = iter((yield [row for row in rows if isinstance(row, Tensor)]))
        values = [
            _row_of_sums(one, next(fetched)) if isinstance(row, Tensor) else row
            for one, row in zip(seen, rows, strict=True)
        ]
        numbers = np.array(values, dtype=np.float64)
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
        self._seen, self.has_begun = [], False


def _row(seen: ParameterBeforeUpdate) -> list[float]:
    after = _dense(seen.parameter)
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


def _sums_on_device(seen: ParameterBeforeUpdate) -> Tensor:
    """Compute what `_row_of_sums` needs on an accelerator, without waiting: in pieces, which take little memory."""
    after, gradient = _dense(seen.parameter), seen.gradient
    parts = [after, seen.before, *([] if gradient is None else [gradient])]
    if after.nbytes <= _PIECE_BYTES or seen.rows is not None or not all(x.is_contiguous() for x in parts):
        return _sums_of_piece(after, seen.before, gradient, rows=seen.rows)
    pieces = zip(*(x.view(-1).split(_PIECE_BYTES // after.element_size()) for x in parts), strict=True)
    sums = torch.stack([_sums_of_piece(*piece) for piece in pieces])
    norms, largest = torch.linalg.vector_norm(sums, dim=0), sums.amax(0)
    return torch.stack([norms[0], largest[1], norms[2], largest[3], *sums[:, 4:7].sum(0), norms[7]])


def _sums_of_piece(
    after: Tensor, before: Tensor, gradient: Tensor | None = None, *, rows: Tensor | None = None
) -> Tensor:
    """Return norms and counts of a part of a parameter; at no moment this takes more than twice its memory."""
    wide = _widest(after)
    numbers, is_nonzero = [*_norms_on_device(after)], None
    if gradient is not None:
        is_nonzero = gradient != 0
        is_tiny = gradient.abs() < torch.finfo(gradient.dtype).smallest_normal
        num_tiny = is_tiny.logical_and_(is_nonzero).sum()
        del is_tiny
        numbers += [*_norms_on_device(gradient), is_nonzero.sum(), num_tiny]
    change = before.to(after.device, non_blocking=True).sub_(after)
    moved = torch.linalg.vector_norm(change, dtype=wide)
    if is_nonzero is None:
        numbers += [torch.full_like(moved, math.nan)] * 5
    else:
        touched = change if rows is None else change[tuple(rows)]
        numbers.append((touched != 0).logical_and_(is_nonzero).sum())
    return torch.stack([x.to(wide) for x in (*numbers, moved)])


def _row_of_sums(seen: ParameterBeforeUpdate, sums: Tensor) -> list[float]:
    """Return the row of a parameter that was measured on an accelerator."""
    *norms, num_nonzero, num_tiny, num_changed, moved = sums.tolist()
    count = 1 if seen.gradient is None else max(seen.gradient.numel(), 1)
    share = num_changed / num_nonzero if num_nonzero else _NO_NUMBER
    return [*norms, (count - num_nonzero) / count, num_tiny / count, share, moved]


def _norms_on_device(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the norm and the largest magnitude of the finite elements."""
    x = torch.nan_to_num(x, 0.0, 0.0, 0.0)
    wide = _widest(x)
    return torch.linalg.vector_norm(x, dtype=wide), torch.linalg.vector_norm(x, math.inf, dtype=wide)


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


def _dense(x: Tensor) -> Tensor:
    x = x.detach()
    return x.coalesce().values() if x.layout is torch.sparse_coo else x
