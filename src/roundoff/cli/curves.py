"""The loss and the loss scale of a training, each as a curve in one line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roundoff.cli.console.screen import columns
from roundoff.report.sparkline import sparkline
from roundoff.runs import Metrics

_MIN_STEPS = 8
"""Fewer points are no curve."""
_WIDEST = 48


def curve_lines(metrics: Sequence[Metrics], *, indent: str = "") -> list[str]:
    """Return a line for the loss, and one for the loss scale if it has moved; none of a training of a few steps.

    >>> falling = [Metrics(step=step, loss=float(8 - step), loss_scale=1.0) for step in range(9)]
    >>> curve_lines(falling)
    ['loss   █▇▆▅▅▄▃▂▁  8 to 0']
    """
    losses = [(each.step, each.loss) for each in metrics if each.loss is not None]
    scales = [(each.step, each.loss_scale) for each in metrics if each.loss_scale is not None]
    lines = [_line("loss", losses)] if len(losses) >= _MIN_STEPS else []
    if lines and len({scale for _, scale in scales}) > 1:
        lines.append(_line("scale", scales))
    return [f"{indent}{line}" for line in lines]


def _line(name: str, points: Sequence[tuple[int, float]]) -> str:
    values = [value for _, value in points]
    bad = next((step for step, value in points if not math.isfinite(value)), None)
    ended = f"{values[0]:.3g} to {values[-1]:.3g}" + ("" if bad is None else f"; not finite from step {bad} on")
    room = columns() - len(ended) - 11  # the label, the gaps and the indent
    return f"{name:<5}  {sparkline(values, width=max(8, min(_WIDEST, room)))}  {ended}"
