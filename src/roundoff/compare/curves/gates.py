"""Gates that a candidate must pass, for continuous integration: how far its curves may be from the reference's.

With several reference runs, which differ in their seeds, the candidate is compared with their mean, and a gap that the
reference runs have among themselves is not held against it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roundoff.compare.curves.curve import LossCurve, Numbers, running_mean, smoothing_window
from roundoff.errors import CompareError, UsageError
from roundoff.runs import Run

GATES: Mapping[str, str] = {
    "mean-loss": "the mean loss over the steps that all have, relative: 2%",
    "matched-step": "the largest gap of the smoothed losses at the same step, absolute: 0.01; or relative: 1%",
    "grad-norm": "the mean gradient norm over the steps that all have, relative: 5%",
}
"""What each gate limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A limit on one gap."""

    name: str
    limit: float
    is_relative: bool

    @property
    def quantity(self) -> str:
        """The number of a step that it is about, as metrics name it."""
        return "grad_norm" if self.name == "grad-norm" else "loss"

    def format(self, gap: float) -> str:
        """Write a gap as the limit is written."""
        return f"{100 * gap:.3g} %" if self.is_relative else f"{gap:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """What a gate measured."""

    gate: Gate
    gap: float
    """Candidate less reference, relative if the gate is; infinite if the candidate alone is not finite somewhere."""
    noise: float | None
    """The largest gap between a reference run and the others; None if there is one only."""
    num_references: int
    num_steps: int
    step: int | None = None
    """Where the gap is."""

    @property
    def is_passed(self) -> bool:
        """Whether the gap is within the limit, or within what the reference runs differ by among themselves."""
        return abs(self.gap) <= max(self.gate.limit, self.noise or 0.0)


def parse_gate(text: str) -> Gate:
    """Read a gate as it is typed.

    >>> parse_gate("mean-loss=2%")
    Gate(name='mean-loss', limit=0.02, is_relative=True)
    """
    name, equals, value = text.partition("=")
    is_relative = value.strip().endswith("%") or name != "matched-step"
    try:
        limit = float(value.strip().removesuffix("%")) / (100 if value.strip().endswith("%") else 1)
    except ValueError:
        limit = math.nan
    if name not in GATES or not equals or not 0 <= limit < math.inf:
        raise UsageError.explain(
            f"Invalid --gate {text}.",
            why="a gate is a name and a limit; the names are " + ", ".join(GATES) + ".",
            fix="write --gate mean-loss=2% or --gate matched-step=0.01",
        )
    return Gate(name=name, limit=limit, is_relative=is_relative)


def curve_of_run(run: Run, quantity: str) -> LossCurve:
    """Return the loss or the gradient norm of a run by step; empty if it has none."""
    points = [(each.step, value) for each in run.metrics() if (value := getattr(each, quantity)) is not None]
    return LossCurve.of([step for step, _ in points], [value for _, value in points], name=str(run.path))


def measure_gate(gate: Gate, references: Sequence[LossCurve], candidate: LossCurve) -> GateResult:
    """Measure the gap that a gate limits.

    Raises:
        CompareError: the curves have no step in common, or a reference is not finite.
    """
    steps = functools.reduce(np.intersect1d, [np.asarray(curve.steps) for curve in (*references, candidate)])
    if not len(steps):
        raise CompareError.explain(
            f"The gate {gate.name} has no step to compare.",
            why=f"not every run has a {gate.quantity.replace('_', ' ')} at the same step.",
            fix="compare runs of the same part of a training, each with this number in its metrics.",
        )
    values = [_at(curve, steps) for curve in references]
    if not all(np.isfinite(each).all() for each in values):
        raise CompareError.explain(
            f"The gate {gate.name} has no measure.", why="the reference is not finite everywhere."
        )
    measure = _largest_gap if gate.name == "matched-step" else _mean_gap
    gap, place = measure(np.mean(values, axis=0), _at(candidate, steps), gate.is_relative)
    return GateResult(
        gate=gate,
        gap=gap,
        noise=_own_noise(values, measure, gate.is_relative),
        num_references=len(references),
        num_steps=len(steps),
        step=None if place is None else int(steps[place]),
    )


Measure = Callable[[Numbers, Numbers, bool], tuple[float, int | None]]


def _at(curve: LossCurve, steps: Numbers) -> Numbers:
    return np.asarray(curve.values, dtype=np.float64)[np.searchsorted(np.asarray(curve.steps), steps)]


def _mean_gap(reference: Numbers, candidate: Numbers, is_relative: bool) -> tuple[float, int | None]:
    if not np.isfinite(candidate).all():
        return math.inf, int(np.argmin(np.isfinite(candidate)))
    return _relative(float(candidate.mean() - reference.mean()), float(reference.mean()), is_relative), None


def _largest_gap(reference: Numbers, candidate: Numbers, is_relative: bool) -> tuple[float, int | None]:
    """Return the largest gap of the running means, which a single noisy step does not decide."""
    if not np.isfinite(candidate).all():
        return math.inf, int(np.argmin(np.isfinite(candidate)))
    window = min(smoothing_window(len(reference)), max(1, len(reference) // 4))
    first, second = running_mean(reference, window), running_mean(candidate, window)
    place = int(np.argmax(np.abs(second - first)))
    return _relative(float(second[place] - first[place]), float(first[place]), is_relative), place


def _relative(gap: float, level: float, is_relative: bool) -> float:
    if not is_relative or gap == 0:
        return gap
    return gap / abs(level) if level else math.copysign(math.inf, gap)


def _own_noise(values: Sequence[Numbers], measure: Measure, is_relative: bool) -> float | None:
    """Return the largest gap between one of the reference runs and the mean of the others."""
    if len(values) < 2:
        return None
    total = np.sum(values, axis=0)
    return max(abs(measure((total - each) / (len(values) - 1), each, is_relative)[0]) for each in values)
