"""Stretches in which a curve is away from another for longer than an outlier."""

from __future__ import annotations

import numpy as np

from roundoff.compare.curve_gap import Gap
from roundoff.compare.curve_noise import Mask, smoothing_window

_LEAST_POINTS = 5
"""So many single values beyond the noise are no outliers; of a short curve a quarter."""
_LAST_POINTS = 2
_LAST_EXCESS = 2.0
"""At the very end so many are enough, if they are off by so many times what is explained."""


def apart(gap: Gap) -> list[tuple[int, int]]:
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
    least = min(_LEAST_POINTS, max(_LAST_POINTS, len(gap.excess) // 4))
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
