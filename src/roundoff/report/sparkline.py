"""Curves in one line of text each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from roundoff.runs import Metrics

_BARS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "x"
_MIN_STEPS = 8
"""Fewer points are not worth a curve."""
_MAX_WIDTH = 48


def curve_lines(metrics: Sequence[Metrics], *, width: int = 100, indent: str = "") -> list[str]:
    """Draw the loss, and the loss scale if it changed, as one line each; nothing for a training of a few steps.

    >>> falling = [Metrics(step=step, loss=float(8 - step), loss_scale=1.0) for step in range(9)]
    >>> curve_lines(falling)
    ['loss   █▇▆▅▅▄▃▂▁  8 to 0']
    """
    losses = [(each.step, each.loss) for each in metrics if each.loss is not None]
    scales = [(each.step, each.loss_scale) for each in metrics if each.loss_scale is not None]
    lines = [_curve_line("loss", losses, width=width)] if len(losses) >= _MIN_STEPS else []
    if lines and len({scale for _, scale in scales}) > 1:
        lines.append(_curve_line("scale", scales, width=width))
    return [f"{indent}{line}" for line in lines]


def _curve_line(name: str, points: Sequence[tuple[int, float]], *, width: int) -> str:
    values = [value for _, value in points]
    bad = next((step for step, value in points if not math.isfinite(value)), None)
    ends = f"{values[0]:.3g} to {values[-1]:.3g}" + ("" if bad is None else f"; not finite from step {bad} on")
    room = width - len(ends) - 11  # the label, the gaps and the indent
    return f"{name:<5}  {sparkline(values, width=max(8, min(_MAX_WIDTH, room)))}  {ends}"


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
