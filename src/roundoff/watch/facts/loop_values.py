"""Notes what the loop itself computes before the model's forward, or without gradients, that is not finite."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from roundoff.record.source_lines import shown_path
from roundoff.runs import LoopArgument, LoopValueProbe, RunWriter

_MAX_NOTES = 16
_MAX_ELEMENTS = 2**22
_NAMES = {"truediv": "div", "rtruediv": "div", "itruediv": "div", "true_divide": "div", "divide": "div", "rpow": "pow"}


class LoopValues:
    """Looks at the results of functions with a domain, such as a division, of which no replay knows.

    Reading a result costs less than computing it did. Tensors on an accelerator are left alone: that would mean
    waiting for it.
    """

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self._num_notes = 0

    def see(self, function: str, args: tuple[Any, ...], result: Any, *, step: int, line: Callable[[], Any]) -> None:
        """Note a result that is not finite although the arguments are."""
        if self._num_notes >= _MAX_NOTES or not _is_readable(result) or isfinite(float(result.detach().sum())):
            return
        tensors = [x for x in args if _is_readable(x) and x is not result]
        num_bad = _num_bad(result)
        if not num_bad or any(map(_num_bad, tensors)):
            return  # a sum may overflow where no element does
        where = line()
        if where is None:
            return
        self._num_notes += 1
        name = function.strip("_")
        self._writer.write(
            LoopValueProbe(
                step=step,
                function=_NAMES.get(name, name),
                source=f"{shown_path(where[0])}:{where[1]}",
                num_bad=num_bad,
                num_elements=result.numel(),
                num_nan=int(result.detach().isnan().sum()),
                arguments=tuple(map(_argument, tensors)),
            )
        )


def _is_readable(x: Any) -> bool:
    return (
        type(x) is Tensor
        and x.is_cpu
        and x.is_floating_point()
        and x.layout is torch.strided
        and 0 < x.numel() <= _MAX_ELEMENTS
    )


def _num_bad(x: Tensor) -> int:
    return int((~x.detach().isfinite()).sum())


def _argument(x: Tensor) -> LoopArgument:
    values = x.detach()
    return LoopArgument(
        num_elements=x.numel(), num_zero=int((values == 0).sum()), min=float(values.min()), max=float(values.max())
    )
