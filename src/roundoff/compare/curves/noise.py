"""How a curve moves: its smooth trend, and how far single values scatter around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_SPREAD_OF_MEDIAN = 1.4826
"""The standard deviation of normal numbers in units of the median of their magnitudes."""
_HARDLY = 0.005
"""Less noise than that, of the level of a curve, is hardly any."""
_ENOUGH = 8
"""Fewer values do not tell how they hang together."""
_LARGEST = 1e75
_PARTS = 8
"""Medians are taken so many times in half a window."""
_ROWS_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The trend of a curve and its noise, at every one of its points."""

    trend: Numbers
    sigma: Numbers
    """The spread of single values around the trend, near by."""
    scatter: Numbers
    """Each value's distance from the trend in units of that, at most 3: an outlier counts little."""
    num_alike: float
    """How many values in a row say the same: 1 for independent noise, more where the log was smoothed."""


def clip_values(values: Numbers) -> Numbers:
    """Return values that can be squared, added up and divided by: larger ones are as large as that, tiny ones are 0."""
    clipped = np.clip(values, -_LARGEST, _LARGEST)
    return np.where(np.abs(clipped) < 1 / _LARGEST, 0.0, clipped)


def smoothing_window(num_points: int) -> int:
    """Return over how many points a curve is smoothed: a twentieth of it, an odd number from 5 to 51."""
    return min(51, max(5, num_points // 20 // 2 * 2 + 1))


def noise_of(values: Numbers) -> Noise:
    """Measure a curve of finite values.

    Everything is told by medians, and from the differences of neighbours, which no slope disturbs. Where those say that
    the noise hangs together, as in a log that was smoothed, it is as large as it would be in the long run.
    """
    window = smoothing_window(len(values))
    trend = running_mean(running_median(values, window), max(3, window // 2))
    jumps = _jumps(values)
    likeness = _likeness(jumps, _jumps(values, over=2))
    sigma = np.maximum(_spread(jumps) / np.sqrt(2 * (1 - likeness)), 0.7 * _spread(values - trend))
    scatter = np.divide(values - trend, sigma, out=np.zeros_like(sigma), where=sigma > 0)
    num_alike = (1 + likeness) / (1 - likeness)
    return Noise(trend=trend, sigma=sigma, scatter=np.clip(scatter, -3.0, 3.0), num_alike=num_alike)


def shared_noise(first: Noise, second: Noise, *, begin_alike: bool) -> Numbers:
    """Return from 0 to 1 how far two curves share their noise, near by: 1 for the same batches in the same order.

    Where there is hardly any noise, as with one large batch, it is told by how they begin.
    """
    window = _noise_window(len(first.sigma))
    product = running_mean(first.scatter * second.scatter, window)
    size = np.sqrt(running_mean(first.scatter**2, window) * running_mean(second.scatter**2, window))
    shared = np.clip(np.divide(product, size, out=np.zeros_like(size), where=size > 0), 0.0, 1.0)
    return np.where(first.sigma > _HARDLY * np.abs(first.trend), shared, float(begin_alike))


def running_median(values: Numbers, window: int, *, ends: Literal["even", "odd"] = "odd") -> Numbers:
    """Return the median of the `window` values around each; of wide windows some, and between them a straight line.

    At its ends the curve goes on mirrored ("even"), or turned around its last point ("odd"), which keeps its slope.
    """
    half = min(window // 2, len(values) - 1)
    padded = np.pad(values, half, mode="reflect", reflect_type=ends) if half else values
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    places = np.unique(np.append(np.arange(0, len(values), max(1, half // _PARTS)), len(values) - 1))
    parts = [np.median(windows[places[at : at + _ROWS_AT_ONCE]], axis=1) for at in range(0, len(places), _ROWS_AT_ONCE)]
    return np.asarray(np.interp(np.arange(len(values)), places, np.concatenate(parts)))


def running_mean(values: Numbers, window: int) -> Numbers:
    """Return the mean of the `window` values around each, of fewer at the ends."""
    places = np.arange(len(values))
    return _means(values, np.maximum(places - window // 2, 0), np.minimum(places + window // 2 + 1, len(values)))


def trailing_mean(values: Numbers, window: int) -> tuple[Numbers, Numbers]:
    """Return the mean of each value and those before it, up to `window` in all, and how many those were."""
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return _means(values, begins, ends), (ends - begins).astype(np.float64)


def _means(values: Numbers, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Numbers:
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


def _noise_window(num_points: int) -> int:
    """Return how many points around one tell the noise there: a fifth of the curve, an odd number from 15 to 101."""
    return min(101, max(15, num_points // 5 // 2 * 2 + 1))


def _jumps(values: Numbers, *, over: int = 1) -> Numbers:
    """Return how far each value is from the one `over` places before it, beyond the slope of the curve there."""
    if len(values) <= over:
        return np.zeros_like(values)
    jumps = values[over:] - values[:-over]
    jumps = jumps - running_median(jumps, _noise_window(len(values)))
    return np.concatenate([jumps, jumps[-over:]])


def _likeness(over_one: Numbers, over_two: Numbers) -> float:
    """Return how far the noise of a value is that of the one before it, from 0 (not at all) to 0.95.

    If a share s of it is, jumps over two values are as large as 1 + s times those over one, squared.
    """
    one, two = np.median(np.abs(over_one)), np.median(np.abs(over_two))
    return float(np.clip((two / one) ** 2 - 1, 0.0, 0.95)) if one > 0 and len(over_one) >= _ENOUGH else 0.0


def _spread(residuals: Numbers) -> Numbers:
    return _SPREAD_OF_MEDIAN * running_median(np.abs(residuals), _noise_window(len(residuals)), ends="even")
