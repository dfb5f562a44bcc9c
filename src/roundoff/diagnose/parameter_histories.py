"""What the measured steps did to each parameter, as arrays with one entry per step."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from roundoff.runs import Run

FIRST_STEPS = range(20)
"""The steps in which every parameter is measured."""

Numbers: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterHistory:
    """Norms of one parameter, its gradient and its update over the measured steps; NaN if there was none."""

    name: str
    site: str
    num_elements: int
    steps: npt.NDArray[np.int64]
    """In order."""
    norm: Numbers
    gradient: Numbers
    update: Numbers
    zero_share: Numbers
    """Of the gradient's elements."""

    @property
    def is_always_zero(self) -> bool:
        """Whether there were several gradients and each was exactly 0, which one that is all NaN is not."""
        return len(self.steps) >= 3 and bool(((self.gradient == 0) & (self.zero_share == 1)).all())

    @property
    def is_always_missing(self) -> bool:
        """Whether it never had a gradient when its optimizer stepped."""
        return len(self.steps) >= 2 and bool(np.isnan(self.gradient).all())

    @property
    def root_mean_square(self) -> float:
        """The size of a gradient element: the median over the steps."""
        known = self.gradient[np.isfinite(self.gradient)]
        return float(np.median(known)) / math.sqrt(max(self.num_elements, 1)) if known.size else math.nan


def first_histories(run: Run) -> dict[str, ParameterHistory]:
    """Return what the first steps did to each parameter, on the first rank."""
    return parameter_histories(run, min(run.ranks, default=0), steps=FIRST_STEPS)


def parameter_histories(
    run: Run, rank: int, *, steps: Collection[int] | None = None, names: Collection[str] | None = None
) -> dict[str, ParameterHistory]:
    """Return the history of each parameter that an optimizer holds, by name, in all measured or the given steps."""
    table = run.parameters(step=steps, rank=rank)
    if names is not None:
        table = table.take(table.texts("parameter").matches(lambda name: name in names))
    if not table.num_rows:
        return {}
    parameters, of_step = table.texts("parameter").without_unused(), table.numbers("step")
    places = parameters.codes
    order = np.lexsort((of_step, places))
    columns = {name: table.numbers(name)[order] for name in ("l2", "grad_l2", "update_l2", "grad_zero_share")}
    ends = np.searchsorted(places[order], np.arange(len(parameters.values)), side="right").tolist()
    found = {}
    for name, begin, end in zip(parameters.values, [0, *ends], ends, strict=False):
        rows, first = slice(begin, end), int(order[begin])
        found[name] = ParameterHistory(
            name=name,
            site=table.texts("site").values[table.texts("site").codes[first]],
            num_elements=int(table.numbers("num_elements")[first]),
            steps=of_step[order[rows]],
            norm=columns["l2"][rows],
            gradient=columns["grad_l2"][rows],
            update=columns["update_l2"][rows],
            zero_share=columns["grad_zero_share"][rows],
        )
    return found
