"""A loss curve: its smooth trend, the noise around it, and its shape (falling, flat, rising, exploded, spiking)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_SPREAD_OF_MEDIAN = 1.4826
"""The standard deviation of normal numbers in units of the median of their magnitudes."""
_HARDLY = 0.005
"""Noise below this share of a curve's level is negligible."""
_ENOUGH = 8
"""Fewer values do not show whether their noise is correlated."""
_LARGEST = 1e75
_PARTS = 8
"""How many medians are computed per half window."""
_ROWS_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The trend of a curve and its noise, at every one of its points."""

    trend: Numbers
    sigma: Numbers
    """The spread of single values around the trend, near by."""
    scatter: Numbers
    """Each value's distance from the trend in units of sigma, at most 3, so that outliers count little."""
    num_alike: float
    """Over how many values noise is correlated: 1 if it is independent, more where the log was smoothed."""


def clip_values(values: Numbers) -> Numbers:
    """Limit finite values to a range in which they can be squared, summed and divided by."""
    clipped = np.where(np.isfinite(values), np.clip(values, -_LARGEST, _LARGEST), values)
    return np.where(np.abs(clipped) < 1 / _LARGEST, 0.0, clipped)


def runs_of(mask: Mask, *, gap: int = 0) -> list[tuple[int, int]]:
    """Return begin and end of each run of True; runs at most `gap` points apart are joined."""
    found: list[tuple[int, int]] = []
    for place in np.flatnonzero(mask).tolist():
        begin = found.pop()[0] if found and place - found[-1][1] <= gap else place
        found.append((begin, place + 1))
    return found


def smoothing_window(num_points: int) -> int:
    """Return over how many points a curve is smoothed: a twentieth of its length, an odd number from 5 to 51."""
    return min(51, max(5, num_points // 20 // 2 * 2 + 1))


def noise_of(values: Numbers) -> Noise:
    """Measure a curve of finite values.

    All estimates are medians, of differences of neighbours, which do not depend on the slope. If the noise is
    correlated, as in a smoothed log, sigma is its spread in the long run.
    """
    window = smoothing_window(len(values))
    trend = running_mean(running_median(values, window), max(3, window // 2))
    jumps = _jumps(values)
    autocorrelation = _autocorrelation(jumps, _jumps(values, over=2))
    sigma = np.maximum(_local_sigma(jumps) / np.sqrt(2 * (1 - autocorrelation)), 0.7 * _local_sigma(values - trend))
    scatter = np.divide(values - trend, sigma, out=np.zeros_like(sigma), where=sigma > 0)
    num_alike = (1 + autocorrelation) / (1 - autocorrelation)
    return Noise(trend=trend, sigma=sigma, scatter=np.clip(scatter, -3.0, 3.0), num_alike=num_alike)


def shared_noise(first: Noise, second: Noise, *, begin_alike: bool) -> Numbers:
    """Return the local correlation of two curves' noise, from 0 to 1: 1 for the same batches in the same order.

    Where there is hardly any noise, as with one large batch, `begin_alike` decides.
    """
    window = _noise_window(len(first.sigma))
    product = running_mean(first.scatter * second.scatter, window)
    size = np.sqrt(running_mean(first.scatter**2, window) * running_mean(second.scatter**2, window))
    shared = np.clip(np.divide(product, size, out=np.zeros_like(size), where=size > 0), 0.0, 1.0)
    return np.where(first.sigma > _HARDLY * np.abs(first.trend), shared, float(begin_alike))


def running_median(values: Numbers, window: int, *, ends: Literal["even", "odd"] = "odd") -> Numbers:
    """Return the median of the `window` values around each; for wide windows some, linearly interpolated.

    At its ends the curve is continued by mirroring ("even"), or point reflection ("odd"), which keeps its slope.
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
    """Return over how many points noise is measured: a fifth of the curve, an odd number from 15 to 101."""
    return min(101, max(15, num_points // 5 // 2 * 2 + 1))


def _jumps(values: Numbers, *, over: int = 1) -> Numbers:
    """Return the difference of each value to the one `over` places before it, less the local slope."""
    if len(values) <= over:
        return np.zeros_like(values)
    jumps = values[over:] - values[:-over]
    jumps = jumps - running_median(jumps, _noise_window(len(values)))
    return np.concatenate([jumps, jumps[-over:]])


def _autocorrelation(over_one: Numbers, over_two: Numbers) -> float:
    """Return the autocorrelation s of the noise, from 0 to 0.95.

    Squared jumps over two values are 1 + s times as large as those over one.
    """
    one, two = np.median(np.abs(over_one)), np.median(np.abs(over_two))
    return float(np.clip((two / one) ** 2 - 1, 0.0, 0.95)) if one > 0 and len(over_one) >= _ENOUGH else 0.0


def _local_sigma(residuals: Numbers) -> Numbers:
    return _SPREAD_OF_MEDIAN * running_median(np.abs(residuals), _noise_window(len(residuals)), ends="even")


_LARGEST_STEP = 2**62
"""A larger number is not a step, and overflows int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """Values by step, the steps rising; a value may be NaN or infinite."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.steps) == len(self.values), "a step for every value"

    @classmethod
    def of(cls, steps: Sequence[int | None], values: Sequence[float], *, name: str) -> LossCurve:
        """Build a curve from the entries of a log, in order.

        Values are numbered by their order if a step is missing, or if steps restart (as batches do with every epoch)
        or do not advance. If a log goes back to an earlier step, as a resumed training does, the later value counts.

        >>> LossCurve.of([0, 1, 0, 1], [3.0, 2.0, 1.5, 1.0], name="a").steps
        (0, 1, 2, 3)
        >>> LossCurve.of([0, 1, 2, 1, 2], [4.0, 3.0, 9.0, 2.5, 2.0], name="a").values
        (4.0, 2.5, 2.0)
        """
        known = [step for step in steps if step is not None and abs(step) < _LARGEST_STEP]
        restarts = any(later < step and later <= known[0] for step, later in itertools.pairwise(known))
        if len(known) < len(values) or restarts or 2 * len(set(known)) < len(known):
            return cls(name=name, steps=tuple(range(len(values))), values=tuple(values))
        latest = dict(zip(known, values, strict=True))
        return cls(name=name, steps=tuple(sorted(latest)), values=tuple(latest[step] for step in sorted(latest)))


_SPIKE_SIGMAS = 10.0
_SPIKE_LEVELS = 1.0
_SPIKE_SHARE = 0.1
"""A spike exceeds the trend by these multiples of the noise and of the trend, and this share of the trend's range."""
_EXPLODED = 3.0
"""A loss has exploded if it ends this many times its start level above its lowest level."""
_MATTERS = 0.05
"""Changes below this share of the trend's range are ignored."""


class ShapeKind(StrEnum):
    """What a curve does on the whole."""

    FALLING = "falling"
    FLAT = "flat"
    RISING = "rising"
    EXPLODED = "exploded"
    SPIKING = "spiking"
    NON_FINITE = "non-finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveShape:
    """What a curve does, since when, and from where to where."""

    kind: ShapeKind
    since: int | None = None
    """The step since which it rises, has exploded or is not finite; since which it is flat, also after a fall."""
    start: float = math.nan
    """The level of its first finite values, of its last ones, and the minimum of its trend; NaN if none is finite."""
    end: float = math.nan
    lowest: float = math.nan
    spikes: tuple[int, ...] = ()
    """The first step of each spike."""
    highest: float = 0.0
    """How far the highest spike exceeds the trend, in units of the noise; 0 if there is none."""
    num_nonfinite: int = 0
    first_nonfinite: int | None = None


def shape_of(curve: LossCurve) -> CurveShape:
    """Describe the shape of a curve."""
    values, steps = clip_values(np.asarray(curve.values, dtype=np.float64)), np.asarray(curve.steps)
    finite = np.isfinite(values)
    bad = steps[~finite].tolist()
    first_bad = bad[0] if bad else None
    if not finite.any():
        kind = ShapeKind.NON_FINITE
        return CurveShape(kind=kind, since=first_bad, num_nonfinite=len(bad), first_nonfinite=first_bad)
    good, noise = values[finite], noise_of(values[finite])
    kind, place = _kind(good, noise)
    since = int(steps[finite][place]) if place is not None else None
    heights = _heights(good, noise)
    spikes = tuple(int(steps[finite][begin]) for begin, _ in runs_of(heights > _SPIKE_SIGMAS))
    if not finite[-1]:
        kind, since = ShapeKind.NON_FINITE, int(steps[np.flatnonzero(finite)[-1] + 1])
    elif spikes and kind in (ShapeKind.FALLING, ShapeKind.FLAT):
        kind, since = ShapeKind.SPIKING, None
    return CurveShape(
        kind=kind,
        since=since,
        start=float(np.median(good[: tenth_of(good)])),
        end=float(np.median(good[-tenth_of(good) :])),
        lowest=float(noise.trend.min()),
        spikes=spikes,
        highest=float(heights.max()),
        num_nonfinite=len(bad),
        first_nonfinite=first_bad,
    )


def tenth_of(values: Numbers) -> int:
    """Return over how many values the level at either end of a curve is measured."""
    return max(1, min(len(values) // 10, 50))


def _kind(values: Numbers, noise: Noise) -> tuple[ShapeKind, int | None]:
    """Return what the trend does, and the place since which it does so."""
    size = tenth_of(values)
    start, end = float(np.median(values[:size])), float(np.median(values[-size:]))
    low, way = float(noise.trend.min()), float(np.ptp(noise.trend))
    spread = float(np.median(noise.sigma)) * np.sqrt(min(noise.num_alike / size, 1.0))
    matters = max(4 * spread, _MATTERS * way, 0.01 * abs(start))
    if end - low > _EXPLODED * max(abs(start), abs(low)):
        return ShapeKind.EXPLODED, _after_last(values <= max(values[:size].max(), low))
    lowest = int(np.argmin(noise.trend))
    if end - low > max(matters, 2 * _MATTERS * way) and lowest < len(values) - size:
        return ShapeKind.RISING, lowest
    if start - end <= matters:
        return ShapeKind.FLAT, 0
    flat = _after_last(noise.trend > end + matters)
    return ShapeKind.FALLING, flat if 2 * flat < len(values) else None


def _after_last(mask: Mask) -> int:
    """Return the place after the last True, at most the last place of the curve."""
    places = np.flatnonzero(mask)
    return min(int(places[-1]) + 1, len(mask) - 1) if len(places) else 0


def _heights(values: Numbers, noise: Noise) -> Numbers:
    """Return how far values exceed the trend, in units of the noise; 0 for those that are no spikes."""
    trend = running_median(values, 2 * smoothing_window(len(values)) + 1)
    above = values - trend
    is_much = (above > _SPIKE_LEVELS * np.abs(trend)) & (above > _SPIKE_SHARE * np.ptp(trend))
    heights = np.divide(above, noise.sigma, out=np.full_like(above, np.inf), where=noise.sigma > 0)
    return np.where(is_much, heights, 0.0)
