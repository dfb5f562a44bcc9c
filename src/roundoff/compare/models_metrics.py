"""From the reference's result to the candidate's, one change at a time: model, weights, data, metric."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from roundoff.compare.models_step import Inputs, called, fresh, random_state_kept
from roundoff.errors import CompareError

Metric: TypeAlias = Callable[[Any, Any], float | Tensor]
"""From all outputs and all targets to a number."""
Metrics: TypeAlias = Mapping[str, Metric | tuple[Metric, Metric]]
Loader: TypeAlias = Iterable[tuple[Inputs, Any]]
Change: TypeAlias = Literal["model", "weights", "data", "metric"]

_BY_ROUNDING = 1e-4
"""Results that differ by less of their size differ by rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """What one change makes of one metric, everything before it changed already."""

    metric: str
    change: Change
    before: float
    after: float

    @property
    def matters(self) -> bool:
        """Whether the result is another one, beyond rounding."""
        if math.isnan(self.before) or math.isnan(self.after):
            return math.isnan(self.before) != math.isnan(self.after)
        return not math.isclose(self.before, self.after, rel_tol=_BY_ROUNDING, abs_tol=1e-12)


def walk_metrics(
    metrics: Metrics, loaders: tuple[Loader, Loader], *, models: list[tuple[Change | None, nn.Module]]
) -> tuple[MetricChange, ...]:
    """Measure every metric on the way from the reference to the candidate.

    Args:
        metrics: each a function of all outputs and all targets; or two, the reference's and the candidate's.
        loaders: the reference's batches (inputs, targets), and the candidate's.
        models: the reference's model, then what each change makes of it; evaluated in eval mode.
    """
    last = models[-1][1]
    collected = [(change, _collected(model, loaders[0], place=0)) for change, model in models]
    collected.append(("data", _collected(last, loaders[1], place=1)))
    found = []
    for name, given in metrics.items():
        ours, theirs = given if isinstance(given, tuple) else (given, given)
        values = [(change, _number(ours, results)) for change, results in collected]
        values.append(("metric", _number(theirs, collected[-1][1])))
        for (_, before), (change, after) in itertools.pairwise(values):
            assert change is not None, "the reference comes first and alone"
            found.append(MetricChange(metric=name, change=change, before=before, after=after))
    return tuple(found)


def _collected(model: nn.Module, loader: Loader, *, place: int) -> tuple[Any, Any]:
    """Return all outputs and all targets, tensors joined along their first axis."""
    outputs, targets = [], []
    with random_state_kept(), torch.no_grad():
        model.eval()
        for batch in loader:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise CompareError.explain(
                    f"The {('reference', 'candidate')[place]}'s data yields no pairs (inputs, targets).",
                    why=f"one of its batches is a {type(batch).__name__}.",
                    fix="hand over an iterable of pairs.",
                )
            outputs.append(called(model, fresh(batch[0])))
            targets.append(batch[1])
    return _joined(outputs), _joined(targets)


def _joined(parts: list[Any]) -> Any:
    return torch.cat(parts) if parts and all(isinstance(part, Tensor) and part.dim() for part in parts) else parts


def _number(metric: Metric, results: tuple[Any, Any]) -> float:
    return float(metric(*results))
