"""How far one curve is from another, how far noise and pace allow it to be, and where it is farther for long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roundoff.compare.curves.noise import Mask, Numbers, noise_of, shared_noise, smoothing_window, trailing_mean

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
"""Of that, so much for curves that share all their noise."""
_PACE = 0.25
"""Trainings of different seeds learn a little faster or slower: by as much of their time,"""
_MIN_PACE = 5
"""and by at least this many points."""
_START = 0.25
_LONGER = 4
"""Means are taken over the window by which curves are smoothed, and over so many times as many points."""
_BEGIN_ALIKE = 2e-4
_NOISIER = 3.0
"""A candidate's noise is allowed for up to so many times the reference's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The difference of two curves at the points where both are finite, and where it is more than it may be."""

    difference: Numbers
    """Candidate less reference."""
    sigma: Numbers
    """The noise of that difference: less than either curve's where they share it."""
    excess: Numbers
    """The difference in units of what noise and pace explain of a single value."""
    is_near: Mask
    """Beyond what those explain: by itself, or in the mean of the few values up to it."""
    is_apart: Mask
    """The same, or in the mean of many values up to it."""
    is_off: Mask
    """Beyond what noise alone explains of a single value, or of the mean: where a stretch that is apart begins."""
    num_alike: float
    """Over how many points the noise hangs together."""
    shared: float
    """How far the curves share their noise, on the whole."""


def gap_between(reference: Numbers, candidate: Numbers) -> Gap:
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
    return Gap(
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
    """Return how much the reference itself would differ if it were a little ahead of its time, or behind."""
    places = np.arange(len(trend), dtype=np.float64)
    reach = np.maximum(_PACE * places, _MIN_PACE)
    found = np.zeros_like(trend)
    for share in np.linspace(-1.0, 1.0, 9):
        shifted = np.interp(places + share * reach, places, trend)
        found = np.maximum(found, np.abs(shifted - trend))
    return found


def _start(trend: Numbers, difference: Numbers) -> Numbers:
    """Return what is left of the difference that the curves began with: start values of another seed are others.

    It goes as the reference falls, and is a quarter of the first loss at most.
    """
    way = float(trend[0] - trend.min())
    if way <= 0:
        return np.zeros_like(trend)
    begin = min(abs(float(np.mean(difference[:3]))), _START * abs(float(trend[0])))
    return np.asarray(1.2 * begin * np.clip((trend - trend.min()) / way, 0.0, 1.0))


_MIN_POINTS = 5
"""So many single values beyond the noise are no outliers; of a short curve a quarter."""
_LAST_POINTS = 2
_LAST_EXCESS = 2.0
"""At the very end so many are enough, if they are off by so many times what is explained."""


def find_stretches_apart(gap: Gap) -> list[tuple[int, int]]:
    """Return begin and end of each stretch of points that are apart.

    One begins at the first of its points that is off beyond the noise, in the direction of those that are apart.
    """
    found: list[tuple[int, int]] = []
    for begin, end in _runs(gap.is_apart, gap=max(2, smoothing_window(len(gap.is_apart)) // 2)):
        if _persists(gap, begin, end):
            found.append((_onset(gap, begin), _last(gap, begin, end)))
    return found


def _persists(gap: Gap, begin: int, end: int) -> bool:
    """Say whether a run of points is more than outliers: enough of them are off by themselves, or it is long."""
    excess = gap.excess[begin:end]
    if end == len(gap.excess) and len(excess) >= _LAST_POINTS and excess.min() > _LAST_EXCESS:
        return True
    is_long = end - begin >= max(2 * smoothing_window(len(gap.excess)), 3 * gap.num_alike)
    least = min(_MIN_POINTS, max(_LAST_POINTS, len(gap.excess) // 4))
    return is_long or int((excess > 1).sum()) >= max(least, 2 * gap.num_alike)


def _onset(gap: Gap, begin: int) -> int:
    direction = np.sign(gap.difference[begin])
    while begin and gap.is_off[begin - 1] and np.sign(gap.difference[begin - 1]) == direction:
        begin -= 1
    return begin


def _last(gap: Gap, begin: int, end: int) -> int:
    """Return where a stretch ends: the mean of many values stays apart for a while when the last of them are not."""
    near = np.flatnonzero(gap.is_near[begin:end])
    return end if end == len(gap.is_near) or not len(near) else begin + int(near[-1]) + 1


def _runs(mask: Mask, *, gap: int) -> list[tuple[int, int]]:
    """Return begin and end of each run of True, joined over gaps of at most so many points."""
    found: list[tuple[int, int]] = []
    for place in np.flatnonzero(mask).tolist():
        if found and place - found[-1][1] <= gap:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
    return found
