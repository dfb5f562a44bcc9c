"""Two loss curves: from which step on they differ beyond noise, how far apart they end, and what each looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from roundoff.compare.curves.curve import CurveShape, LossCurve, ShapeKind, shape_of
from roundoff.compare.curves.curve_files import read_curve as read_curve
from roundoff.compare.curves.gap import find_stretches_apart, gap_between
from roundoff.compare.curves.noise import Numbers, clip_values
from roundoff.errors import CompareError

_HIGHER = 2.0
"""A candidate's spikes count if they are so many times as high as the reference's own outliers."""


class CurvePoint(NamedTuple):
    """One step of both curves."""

    step: int
    reference: float
    candidate: float
    noise: float
    """The spread that the difference may have by chance; NaN where a curve is not finite."""
    is_apart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedStretch:
    """Steps in which the curves are apart."""

    first_step: int
    last_step: int
    reference: float
    """The mean of the reference over them, and of the candidate; not finite where that is why."""
    candidate: float
    lasts: bool
    """Whether it goes on to the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveComparison:
    """What two curves have in common, and where they part."""

    reference: LossCurve
    candidate: LossCurve
    points: tuple[CurvePoint, ...]
    num_identical: int
    """How many points from the first on are equal to the last bit."""
    stretches: tuple[DivergedStretch, ...]
    """Where they are apart for longer than an outlier, in order."""
    spikes: tuple[int, ...]
    """Steps at which the candidate alone spikes, and comes back."""
    reference_shape: CurveShape
    candidate_shape: CurveShape
    end_reference: float
    """The level of the reference in the last steps that both have, and of the candidate."""
    end_candidate: float
    end_noise: float
    """How far a single value scatters there."""
    shared_noise: float
    """From 0 to 1: how far the curves go up and down together, as they do with the same batches in the same order."""
    is_interpolated: bool
    """Whether the candidate was logged at other steps, and its values between those were taken."""

    @property
    def first_divergence(self) -> int | None:
        """The first step from which the candidate is away for longer than an outlier, or None."""
        return self.stretches[0].first_step if self.stretches else None

    @property
    def differs(self) -> bool:
        """Whether there is anything that noise does not explain."""
        return bool(self.stretches or self.spikes)


def compare_curves(reference: LossCurve, candidate: LossCurve) -> CurveComparison:
    """Compare two curves at the steps they have in common.

    The noise is the reference's own: how its values scatter around its trend, near by. Two trainings with different
    seeds also learn at a slightly different pace, which is allowed for as far as the curves do not share their noise.
    """
    steps, reference_values, candidate_values, is_interpolated = _align_steps(reference, candidate)
    finite = np.isfinite(reference_values) & np.isfinite(candidate_values)
    parts = _find_nonfinite_on_one_side(reference_values, candidate_values)
    noise, is_apart, shared = (
        np.full(len(steps), np.nan),
        np.isfinite(reference_values) != np.isfinite(candidate_values),
        0.0,
    )
    if finite.any():
        gap = gap_between(reference_values[finite], candidate_values[finite])
        noise[finite], is_apart[finite], shared = gap.sigma, gap.is_apart, gap.shared
        places = np.flatnonzero(finite)
        parts += [(int(places[begin]), int(places[end - 1]) + 1) for begin, end in find_stretches_apart(gap)]
    reference_shape, candidate_shape = shape_of(reference), shape_of(candidate)
    since = int(np.searchsorted(steps, candidate_shape.since or 0))
    if not parts and since < len(steps) and _explodes_alone(candidate_shape, reference_shape):
        parts.append((since, len(steps)))  # too short a curve to tell it from noise
    stretches = tuple(_stretch(steps, reference_values, candidate_values, part) for part in _merge_parts(parts))
    return CurveComparison(
        reference=reference,
        candidate=candidate,
        points=tuple(
            map(
                CurvePoint,
                steps.tolist(),
                reference_values.tolist(),
                candidate_values.tolist(),
                noise.tolist(),
                is_apart.tolist(),
            )
        ),
        num_identical=_num_identical(reference_values, candidate_values),
        stretches=stretches,
        spikes=_own_spikes(candidate_shape, reference_shape, stretches),
        reference_shape=reference_shape,
        candidate_shape=candidate_shape,
        end_reference=_end(reference_values),
        end_candidate=_end(candidate_values),
        end_noise=float(noise[finite][-1]) if finite.any() else float("nan"),
        shared_noise=shared,
        is_interpolated=is_interpolated,
    )


def _align_steps(reference: LossCurve, candidate: LossCurve) -> tuple[npt.NDArray[np.int64], Numbers, Numbers, bool]:
    """Return common steps and both values there; the candidate's between its own steps, where most are not common."""
    steps, reference_places, candidate_places = np.intersect1d(
        reference.steps, candidate.steps, assume_unique=True, return_indices=True
    )
    first, second = _values(reference), _values(candidate)
    if 2 * len(steps) >= min(len(first), len(second)):
        return steps, first[reference_places], second[candidate_places], False
    all_steps = np.asarray(reference.steps)
    inside = (all_steps >= candidate.steps[0]) & (all_steps <= candidate.steps[-1])
    if not inside.any():
        if len(steps):
            return steps, first[reference_places], second[candidate_places], False
        raise CompareError.explain(
            f"'{reference.name}' and '{candidate.name}' have no step in common.",
            why=f"one has steps {_span(reference)}, the other {_span(candidate)}.",
            fix="compare curves of the same part of the training.",
        )
    between = np.interp(all_steps[inside], np.asarray(candidate.steps), second)
    return all_steps[inside], first[inside], between, True


def _values(curve: LossCurve) -> Numbers:
    values = np.asarray(curve.values, dtype=np.float64)
    return np.where(np.isfinite(values), clip_values(values), values)


def _span(curve: LossCurve) -> str:
    return f"{curve.steps[0]} to {curve.steps[-1]}"


def _num_identical(reference: Numbers, candidate: Numbers) -> int:
    same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
    return len(same) if same.all() else int(np.argmin(same))


def _end(values: Numbers) -> float:
    """Return the level of the last tenth of a curve: its median, which is not finite if half of it is not."""
    tail = values[-max(1, min(len(values) // 10, 50)) :]
    if not np.isfinite(tail[-1]):
        return float(tail[-1])
    return float(np.median(tail[np.isfinite(tail)]))


def _find_nonfinite_on_one_side(reference: Numbers, candidate: Numbers) -> list[tuple[int, int]]:
    """Return begin and end of each run of points where one curve is finite and the other is not."""
    mask = np.isfinite(reference) != np.isfinite(candidate)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]


def _explodes_alone(candidate: CurveShape, reference: CurveShape) -> bool:
    return candidate.kind is ShapeKind.EXPLODED and reference.kind is not ShapeKind.EXPLODED


def _merge_parts(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join parts that touch or overlap."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(parts):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _stretch(
    steps: npt.NDArray[np.int64], reference: Numbers, candidate: Numbers, part: tuple[int, int]
) -> DivergedStretch:
    begin, end = part
    with np.errstate(invalid="ignore"):  # infinities of both signs have the mean NaN
        means = [float(np.mean(values[begin:end])) for values in (reference, candidate)]
    return DivergedStretch(
        first_step=int(steps[begin]),
        last_step=int(steps[end - 1]),
        reference=means[0],
        candidate=means[1],
        lasts=end == len(steps),
    )


def _own_spikes(
    candidate: CurveShape, reference: CurveShape, stretches: tuple[DivergedStretch, ...]
) -> tuple[int, ...]:
    """Return the candidate's spikes outside of stretches, if they are more than the reference has itself."""
    if candidate.highest < _HIGHER * reference.highest:
        return ()
    inside = [range(stretch.first_step, stretch.last_step + 1) for stretch in stretches]
    return tuple(step for step in candidate.spikes if not any(step in part for part in inside))
