"""When a loss counts as a jump."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW = 50
"""The number of losses before a step by which it is judged."""
WARM_UP = 20
"""The number of losses that must be known before one can stand out."""
NUM_DEVIATIONS = 10.0
NUM_LOG_DEVIATIONS = 8.0
_DEVIATION_OF_MAD = 1.48
"""Converts a median absolute deviation into a standard deviation, for normal noise."""
MIN_RATIO = 2.0
MIN_JUMP = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A loss that is far above those before it."""

    loss: float
    median: float
    """Of the losses before it."""
    limit: float
    """The value it exceeded."""


class SpikeDetector:
    """Says of each loss whether it jumped; a few microseconds a step.

    A jump is above the median of the last losses by ten deviations, by a factor of two, and by 0.5. If losses vary by
    orders of magnitude, it must also be an outlier among their logarithms. Losses that are not finite are ignored here.
    A loss that jumped still enters the window, so a new level is reported once.
    """

    def __init__(self) -> None:
        self._window: deque[float] = deque()
        self._sorted: list[float] = []

    def see(self, loss: float) -> Spike | None:
        """Take the loss of the next step; return the spike if it is one."""
        if not math.isfinite(loss):
            return None
        spike = self._judge(loss)
        self._window.append(loss)
        bisect.insort(self._sorted, loss)
        if len(self._window) > WINDOW:
            del self._sorted[bisect.bisect_left(self._sorted, self._window.popleft())]
        return spike

    def _judge(self, loss: float) -> Spike | None:
        known = self._sorted
        if len(known) < WARM_UP:
            return None
        median = known[len(known) // 2]
        if loss <= median + MIN_JUMP or loss <= MIN_RATIO * median:
            return None  # nearly always, and cheap
        limit = max(median + NUM_DEVIATIONS * _deviation(known, median), known[-1])
        if known[0] > 0:
            magnitudes = [math.log(value) for value in known]
            middle = math.log(median)
            limit = max(limit, math.exp(min(700.0, middle + NUM_LOG_DEVIATIONS * _deviation(magnitudes, middle))))
        limit = max(limit, median + MIN_JUMP, MIN_RATIO * median)
        return Spike(loss=loss, median=median, limit=limit) if loss > limit else None


def _deviation(values: Sequence[float], median: float) -> float:
    """Estimate the standard deviation from the median absolute deviation, which is robust against outliers."""
    distances = sorted(abs(value - median) for value in values)
    return _DEVIATION_OF_MAD * distances[len(distances) // 2]
