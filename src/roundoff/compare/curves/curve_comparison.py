"""Compares two loss curves: where they differ beyond noise, how far apart they end, and what each looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from roundoff.compare.curves.curve import (
    CurveShape,
    LossCurve,
    Mask,
    Numbers,
    ShapeKind,
    clip_values,
    noise_of,
    runs_of,
    shape_of,
    shared_noise,
    smoothing_window,
    tenth_of,
    trailing_mean,
)
from roundoff.compare.shown_comparison import ShownComparison
from roundoff.errors import CompareError

_SINGLE_SIGMAS = 5.0
"""How many times the noise a single value must be off to count."""
_MEAN_SIGMAS = 4.0
"""The same for the mean of several."""
_ONSET_SIGMAS = 3.0
"""The same for values right before others that count."""
_SHARE_OF_LEVEL = 0.01
_SHARE_OF_RANGE = 0.002
"""Differences below these shares of the curve's level and of its whole way do not matter."""
_LESS_IF_SHARED = 0.3
"""The factor on these shares for curves that share all their noise."""
_PACE = 0.25
_MIN_PACE = 5
"""Trainings with different seeds may be ahead or late by this share of their time, and at least this many points."""
_START = 0.25
_LONGER = 4
"""Means are taken over the smoothing window, and over this many times as many points."""
_BEGIN_ALIKE = 2e-4
_NOISIER = 3.0
"""A candidate's noise is allowed for up to this many times the reference's own."""


_HIGHER = 2.0
"""A candidate's spikes count if they are this many times as high as the reference's own outliers."""


class CurvePoint(NamedTuple):
    """One step of both curves."""

    step: int
    reference: float
    candidate: float
    noise: float
    """How much the difference scatters by chance; NaN where a curve is not finite."""
    is_apart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedStretch:
    """Steps in which the curves are apart."""

    first_step: int
    last_step: int
    reference: float
    """The mean of the reference over these steps, and of the candidate; not finite if that is the difference."""
    candidate: float
    lasts: bool
    """Whether it goes on to the last step."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CurveComparison(ShownComparison):
    """What two curves have in common, and where they part."""

    reference: LossCurve
    candidate: LossCurve
    points: tuple[CurvePoint, ...]
    num_identical: int
    """How many points from the first on are equal bit for bit."""
    stretches: tuple[DivergedStretch, ...]
    """Where they are apart for longer than an outlier, in order."""
    spikes: tuple[int, ...]
    """Steps at which only the candidate spikes, and recovers."""
    reference_shape: CurveShape
    candidate_shape: CurveShape
    end_reference: float
    """The level of the reference in the last steps that both have, and of the candidate."""
    end_candidate: float
    end_noise: float
    """How much a single value scatters in these last steps."""
    shared_noise: float
    """From 0 to 1: how far the curves fluctuate together, as with the same batches in the same order."""
    is_interpolated: bool
    """Whether the candidate was logged at other steps, and its values were interpolated."""

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

    The noise is the reference's own local scatter around its trend. Two trainings with different seeds also learn at a
    slightly different pace, which is allowed for as far as the curves do not share their noise.
    """
    steps, reference_values, candidate_values, is_interpolated = _align_steps(reference, candidate)
    finite = np.isfinite(reference_values) & np.isfinite(candidate_values)
    is_apart = np.isfinite(reference_values) != np.isfinite(candidate_values)
    parts = runs_of(is_apart)
    noise, shared = np.full(len(steps), np.nan), 0.0
    if finite.any():
        gap = gap_between(reference_values[finite], candidate_values[finite])
        noise[finite], is_apart[finite], shared = gap.sigma, gap.is_apart, gap.shared
        places = np.flatnonzero(finite)
        parts += [(int(places[begin]), int(places[end - 1]) + 1) for begin, end in find_stretches_apart(gap)]
    reference_shape, candidate_shape = shape_of(reference), shape_of(candidate)
    since = int(np.searchsorted(steps, candidate_shape.since or 0))
    explodes_alone = candidate_shape.kind is ShapeKind.EXPLODED is not reference_shape.kind
    if not parts and since < len(steps) and explodes_alone:
        parts.append((since, len(steps)))  # the curve is too short to distinguish it from noise
    stretches = tuple(_stretch(steps, reference_values, candidate_values, part) for part in _merge_parts(parts))
    return CurveComparison(
        reference=reference,
        candidate=candidate,
        points=tuple(
            map(CurvePoint, *(x.tolist() for x in (steps, reference_values, candidate_values, noise, is_apart)))
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
    """Return common steps and both values there; the candidate's are interpolated if few steps are common."""
    steps, reference_places, candidate_places = np.intersect1d(
        reference.steps, candidate.steps, assume_unique=True, return_indices=True
    )
    first, second = (clip_values(np.asarray(curve.values, dtype=np.float64)) for curve in (reference, candidate))
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


def _span(curve: LossCurve) -> str:
    return f"{curve.steps[0]} to {curve.steps[-1]}"


def _num_identical(reference: Numbers, candidate: Numbers) -> int:
    same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
    return len(same) if same.all() else int(np.argmin(same))


def _end(values: Numbers) -> float:
    """Return the median of the last tenth of a curve, or its last value if that is not finite."""
    tail = values[-tenth_of(values) :]
    if not np.isfinite(tail[-1]):
        return float(tail[-1])
    return float(np.median(tail[np.isfinite(tail)]))


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
    with np.errstate(invalid="ignore"):  # the mean of infinities of both signs is NaN
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
    """Return the candidate's spikes outside of stretches, if they are higher than the reference's own."""
    if candidate.highest < _HIGHER * reference.highest:
        return ()
    inside = [range(stretch.first_step, stretch.last_step + 1) for stretch in stretches]
    return tuple(step for step in candidate.spikes if not any(step in part for part in inside))


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveGap:
    """The difference of two curves at the points where both are finite, and where it is unexplained."""

    difference: Numbers
    """Candidate less reference."""
    sigma: Numbers
    """The noise of that difference: less than either curve's where they share it."""
    excess: Numbers
    """The difference in units of what noise and pace explain of a single value."""
    is_near: Mask
    """Beyond that: the value itself, or the mean of the few values up to it."""
    is_apart: Mask
    """The same, or the mean of many values up to it."""
    is_off: Mask
    """Beyond what noise alone explains of a value, or of the mean: where a stretch that is apart begins."""
    num_alike: float
    """Over how many points the noise is correlated."""
    shared: float
    """How far the curves share their noise, as a median."""


def gap_between(reference: Numbers, candidate: Numbers) -> CurveGap:
    """Measure the gap between two curves of finite values at the same steps."""
    reference_noise, candidate_noise = noise_of(reference), noise_of(candidate)
    begin_alike = bool(np.allclose(reference[:3], candidate[:3], rtol=_BEGIN_ALIKE, atol=0.0))
    shared = shared_noise(reference_noise, candidate_noise, begin_alike=begin_alike)
    noise = np.minimum(candidate_noise.sigma, _NOISIER * reference_noise.sigma)
    sigma = np.sqrt(np.maximum(reference_noise.sigma**2 + noise**2 - 2 * shared * reference_noise.sigma * noise, 0.0))
    least = _SHARE_OF_LEVEL * np.abs(reference_noise.trend) + _SHARE_OF_RANGE * np.ptp(reference_noise.trend)
    least *= _LESS_IF_SHARED + (1 - _LESS_IF_SHARED) * np.sqrt(1 - shared)
    difference = candidate - reference
    pace = np.sqrt(1 - shared) * (_pace(reference_noise.trend) + _start(reference_noise.trend, difference))

    single = np.maximum(_SINGLE_SIGMAS * sigma, least) + pace
    clipped = np.clip(difference, -single, single)  # so that one outlier does not carry the mean with it
    num_alike = max(reference_noise.num_alike, candidate_noise.num_alike)
    is_near, is_far, is_off = (np.zeros_like(pace, dtype=bool) for _ in range(3))
    for times, is_apart in ((1, is_near), (_LONGER, is_far)):
        window = times * smoothing_window(len(reference))
        mean, count = trailing_mean(clipped, window)
        spread = np.sqrt(trailing_mean(sigma**2, window)[0] * np.minimum(num_alike / count, 1.0))
        small, slow = trailing_mean(least, window)[0], trailing_mean(pace, window)[0]
        is_apart |= (count >= 3) & (np.abs(mean) > np.maximum(_MEAN_SIGMAS * spread, small) + slow)
        is_off |= (np.abs(mean) > np.maximum(_ONSET_SIGMAS * spread, small)) & (mean * difference > 0)
    is_near |= np.abs(difference) > single
    return CurveGap(
        difference=difference,
        sigma=sigma,
        excess=np.divide(np.abs(difference), single, out=np.zeros_like(single), where=single > 0),
        is_near=is_near,
        is_apart=is_near | is_far,
        is_off=(np.abs(difference) > np.maximum(_ONSET_SIGMAS * sigma, least)) | is_off,
        num_alike=num_alike,
        shared=float(np.median(shared)),
    )


def _pace(trend: Numbers) -> Numbers:
    """Return how much the reference itself would differ if it were a little ahead or late."""
    places = np.arange(len(trend), dtype=np.float64)
    reach = np.maximum(_PACE * places, _MIN_PACE)
    found = np.zeros_like(trend)
    for share in np.linspace(-1.0, 1.0, 9):
        shifted = np.interp(places + share * reach, places, trend)
        found = np.maximum(found, np.abs(shifted - trend))
    return found


def _start(trend: Numbers, difference: Numbers) -> Numbers:
    """Return what remains of the initial difference, which another seed's start values explain.

    It shrinks as the reference falls, and is at most a quarter of the first loss.
    """
    way = float(trend[0] - trend.min())
    if way <= 0:
        return np.zeros_like(trend)
    begin = min(abs(float(np.mean(difference[:3]))), _START * abs(float(trend[0])))
    return np.asarray(1.2 * begin * np.clip((trend - trend.min()) / way, 0.0, 1.0))


_MIN_POINTS = 5
"""This many values beyond the noise are not outliers; of a short curve, a quarter of its values."""


_LAST_POINTS = 2


_LAST_EXCESS = 2.0
"""At the end of a curve this many are enough, if they exceed what is explained this many times."""


def find_stretches_apart(gap: CurveGap) -> list[tuple[int, int]]:
    """Return begin and end of each stretch of points that are apart.

    A stretch begins at the first point that is off beyond the noise, in the direction of those that are apart.
    """
    runs = runs_of(gap.is_apart, gap=max(2, smoothing_window(len(gap.is_apart)) // 2))
    return [(_onset(gap, begin), _last(gap, begin, end)) for begin, end in runs if _persists(gap, begin, end)]


def _persists(gap: CurveGap, begin: int, end: int) -> bool:
    """Return whether a run of points is more than outliers: it is long, or enough single values are off."""
    excess = gap.excess[begin:end]
    if end == len(gap.excess) and len(excess) >= _LAST_POINTS and excess.min() > _LAST_EXCESS:
        return True
    is_long = end - begin >= max(2 * smoothing_window(len(gap.excess)), 3 * gap.num_alike)
    least = min(_MIN_POINTS, max(_LAST_POINTS, len(gap.excess) // 4))
    return is_long or int((excess > 1).sum()) >= max(least, 2 * gap.num_alike)


def _onset(gap: CurveGap, begin: int) -> int:
    direction = np.sign(gap.difference[begin])
    while begin and gap.is_off[begin - 1] and np.sign(gap.difference[begin - 1]) == direction:
        begin -= 1
    return begin


def _last(gap: CurveGap, begin: int, end: int) -> int:
    """Return where a stretch ends: the mean of many values stays apart for a while after the values agree again."""
    near = np.flatnonzero(gap.is_near[begin:end])
    return end if end == len(gap.is_near) or not len(near) else begin + int(near[-1]) + 1
