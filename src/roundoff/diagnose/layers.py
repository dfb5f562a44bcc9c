"""The layers of a recorded step in the order in which its forward runs them, and the gradients their weights get."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roundoff.runs import Event, ParameterFacts, Run
from roundoff.runs.step_ops import NAMED, StepOp, ops_of

PRODUCTS = frozenset({"mm", "addmm", "convolution", "linear", "mkldnn_linear"})
"""Ops that multiply by a weight."""
FIRST_STEPS = range(20)
"""The steps of which every parameter is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A product with a weight: the op that computes it and the weight."""

    op: StepOp
    weight: ParameterFacts

    @property
    def site(self) -> str:
        """The module it belongs to."""
        return self.op.first.site

    @property
    def result(self) -> Event:
        """What comes out."""
        return self.op.outputs[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientHistory:
    """Norms of one parameter's gradient and update over the first steps; NaN where there was none."""

    steps: list[int]
    gradient: npt.NDArray[np.float64]
    update: npt.NDArray[np.float64]
    zero_share: npt.NDArray[np.float64]
    """Of the gradient's elements."""
    num_elements: int

    @property
    def is_always_zero(self) -> bool:
        """Whether there were several gradients and each was exactly 0; one that is all NaN has the norm 0, too."""
        return len(self.steps) >= 3 and bool(((self.gradient == 0) & (self.zero_share == 1)).all())

    @property
    def is_always_missing(self) -> bool:
        """Whether it never had a gradient when its optimizer stepped."""
        return len(self.steps) >= 2 and bool(np.isnan(self.gradient).all())

    @property
    def root_mean_square(self) -> float:
        """The median over the steps of a gradient element's size."""
        known = self.gradient[np.isfinite(self.gradient)]
        return float(np.median(known)) / math.sqrt(max(self.num_elements, 1)) if known.size else math.nan


def forward_ops(run: Run, *, step: int = 0) -> list[StepOp]:
    """Return the ops of a recorded step's first forward, in order; none if the step was not recorded."""
    events = run.iter_events(step=step, phase="forward", rank=first_rank(run))
    return [op for op in ops_of(e for e in events if e.microbatch == 0) if op.first.op not in NAMED and op.outputs]


def layers_of(run: Run, ops: Sequence[StepOp]) -> list[Layer]:
    """Return the layers among the ops, each once, in order."""
    looks = run.structures(rank=first_rank(run))
    if not looks:
        return []
    weights = {p.site: p for p in reversed(looks[0].parameters) if len(p.shape) >= 2}
    found: dict[str, Layer] = {}
    for op in ops:
        site = op.first.site
        if op.bare in PRODUCTS and site in weights:
            found.setdefault(site, Layer(op=op, weight=weights[site]))
    return list(found.values())


def gradient_histories(run: Run) -> dict[str, GradientHistory]:
    """Return what the first steps did to each parameter that an optimizer holds, by name."""
    table = run.parameters(step=FIRST_STEPS, rank=first_rank(run))
    rows: dict[str, list[tuple[int, float, float, float, int]]] = {}
    columns = ("parameter", "step", "grad_l2", "update_l2", "grad_zero_share", "num_elements")
    for name, step, *numbers, count in zip(*(table.column(name).to_pylist() for name in columns), strict=True):
        gradient, update, zero = (math.nan if number is None else number for number in numbers)
        rows.setdefault(name, []).append((step, gradient, update, zero, count))
    return {
        name: GradientHistory(
            steps=[row[0] for row in of_name],
            gradient=np.array([row[1] for row in of_name]),
            update=np.array([row[2] for row in of_name]),
            zero_share=np.array([row[3] for row in of_name]),
            num_elements=of_name[0][4],
        )
        for name, of_name in rows.items()
    }


def first_rank(run: Run) -> int:
    """Return the rank to look at where every rank has the same: the first that has left files."""
    return min(run.ranks, default=0)


def root_mean_square(event: Event) -> float:
    """Return the size of a tensor's elements."""
    return event.l2 / math.sqrt(max(event.num_elements, 1))
