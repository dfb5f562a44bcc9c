"""A loss curve, one number per step, and its shape: falling, flat, rising, exploded, spiking, not finite."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from roundoff.compare.curves.noise import (
    Mask,
    Noise,
    Numbers,
    clip_values,
    noise_of,
    running_median,
    smoothing_window,
)

_LARGEST_STEP = 2**62
"""A larger number is no step, and no machine's integer."""


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
        """Build a curve from what a log says, in its order.

        Where no step is given, or where the steps begin anew (as batches do with every epoch) or stand still, values
        are numbered by their order. Where a log goes back to an earlier step, as a resumed training does, its later
        value counts.

        >>> LossCurve.of([0, 1, 0, 1], [3.0, 2.0, 1.5, 1.0], name="a").steps
        (0, 1, 2, 3)
        >>> LossCurve.of([0, 1, 2, 1, 2], [4.0, 3.0, 9.0, 2.5, 2.0], name="a").values
        (4.0, 2.5, 2.0)
        """
        known = [step for step in steps if step is not None and abs(step) < _LARGEST_STEP]
        if len(known) < len(values) or _begin_anew(known) or 2 * len(set(known)) < len(known):
            return cls(name=name, steps=tuple(range(len(values))), values=tuple(values))
        latest = dict(zip(known, values, strict=True))
        return cls(name=name, steps=tuple(sorted(latest)), values=tuple(latest[step] for step in sorted(latest)))


def _begin_anew(steps: Sequence[int]) -> bool:
    return any(later < step and later <= steps[0] for step, later in itertools.pairwise(steps))


_SPIKE_SIGMAS = 10.0
_SPIKE_LEVELS = 1.0
_SPIKE_SHARE = 0.1
"""A spike stands out from the trend by so many times the noise, so many times the trend, and so much of the way."""
_EXPLODED = 3.0
"""A loss has exploded that ends so many times as high as it began, above its lowest level."""
_MATTERS = 0.05
"""A change by less of the curve's whole way is none."""


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
    start: float
    """The level of its first finite values, of its last ones, and the lowest of its trend; NaN if none is finite."""
    end: float
    lowest: float
    spikes: tuple[int, ...] = ()
    """The first step of each spike."""
    highest: float = 0.0
    """How far the highest value stands out from the trend, in units of the noise; 0 where none does."""
    num_nonfinite: int = 0
    first_nonfinite: int | None = None


def shape_of(curve: LossCurve) -> CurveShape:
    """Say what a curve looks like."""
    values, steps = np.asarray(curve.values, dtype=np.float64), np.asarray(curve.steps)
    finite = np.isfinite(values)
    values = np.where(finite, clip_values(values), values)
    bad = steps[~finite].tolist()
    first_bad = bad[0] if bad else None
    if not finite.any():
        nan = float("nan")
        return CurveShape(
            kind=ShapeKind.NON_FINITE,
            since=first_bad,
            start=nan,
            end=nan,
            lowest=nan,
            num_nonfinite=len(bad),
            first_nonfinite=first_bad,
        )
    good, noise = values[finite], noise_of(values[finite])
    kind, place = _kind(good, noise)
    since = int(steps[finite][place]) if place is not None else None
    heights = _heights(good, noise)
    spikes = tuple(steps[finite][_first_of_each(heights > _SPIKE_SIGMAS)].tolist())
    if not finite[-1]:
        kind, since = ShapeKind.NON_FINITE, int(steps[np.flatnonzero(finite)[-1] + 1])
    elif spikes and kind in (ShapeKind.FALLING, ShapeKind.FLAT):
        kind, since = ShapeKind.SPIKING, None
    return CurveShape(
        kind=kind,
        since=since,
        start=_level(good[: _tenth(good)]),
        end=_level(good[-_tenth(good) :]),
        lowest=float(noise.trend.min()),
        spikes=spikes,
        highest=float(heights.max()),
        num_nonfinite=len(bad),
        first_nonfinite=first_bad,
    )


def _tenth(values: Numbers) -> int:
    return max(1, min(len(values) // 10, 50))


def _level(values: Numbers) -> float:
    return float(np.median(values))


def _kind(values: Numbers, noise: Noise) -> tuple[ShapeKind, int | None]:
    """Return what the trend does, and the place since which it does so."""
    size = _tenth(values)
    start, end = _level(values[:size]), _level(values[-size:])
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
    """Return the place after the last True, which is a place of the curve."""
    places = np.flatnonzero(mask)
    return min(int(places[-1]) + 1, len(mask) - 1) if len(places) else 0


def _heights(values: Numbers, noise: Noise) -> Numbers:
    """Return in units of the noise how far values stand out from the trend; 0 for those that do not by much."""
    trend = running_median(values, 2 * smoothing_window(len(values)) + 1)
    above = values - trend
    is_much = (above > _SPIKE_LEVELS * np.abs(trend)) & (above > _SPIKE_SHARE * np.ptp(trend))
    heights = np.divide(above, noise.sigma, out=np.full_like(above, np.inf), where=noise.sigma > 0)
    return np.where(is_much, heights, 0.0)


def _first_of_each(mask: Mask) -> list[int]:
    """Return the first place of each run of True."""
    return np.flatnonzero(mask & ~np.concatenate([[False], mask[:-1]])).tolist()
