"""A curve in one line of text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "x"


def sparkline(values: Sequence[float], *, width: int = 48, low: float | None = None, high: float | None = None) -> str:
    """Draw values as bars, from their lowest to their highest or between the bounds given; a cross is not finite.

    Where there are more values than places, a place shows the mean of several, and a cross if one is not finite.

    >>> sparkline([4.0, 3.0, 2.0, 1.0, float("nan")])
    '█▆▃▁x'
    """
    finite = [value for value in values if math.isfinite(value)]
    bottom = min(finite, default=0.0) if low is None else low
    top = max(finite, default=0.0) if high is None else high
    places = max(1, min(width, len(values)))
    edges = [len(values) * place // places for place in range(places + 1)]
    return "".join(
        _bar(values[begin:end], bottom=bottom, top=top) for begin, end in itertools.pairwise(edges) if end > begin
    )


def _bar(values: Sequence[float], *, bottom: float, top: float) -> str:
    if not all(map(math.isfinite, values)):
        return _NOT_FINITE
    # Halved first: the difference of two large losses may be infinite.
    span = top / 2 - bottom / 2
    share = (sum(value / len(values) for value in values) / 2 - bottom / 2) / span if span > 0 else 0.0
    return _BARS[round(max(0.0, min(1.0, share)) * (len(_BARS) - 1))]
