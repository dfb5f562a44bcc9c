"""Loss curves as small pictures on a page, and as one line of text on a console."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from roundoff.report.markup import Html, tag
from roundoff.runs import Metrics
from roundoff.words import plural

_WIDTH, _HEIGHT, _MARGIN = 120, 28, 2
_MAX_PARTS = 80
"""Longer curves are split into this many parts, and the extremes of each are shown, so that no spike is lost."""

Point = tuple[int, float]


def loss_curve(losses: Sequence[float]) -> Html:
    """Return the losses of consecutive steps as a picture, the first and the last one as numbers below it.

    A sentence describes it for screen readers. The height is the curve's own, from its lowest to its
    highest finite loss. There must be at least one loss.
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    lines = [_line(points, low=low, high=high, num_steps=len(losses)) for points in _stretches(thin_curve(losses))]
    marks = [_mark(losses)] if len(finite) < len(losses) else []
    picture = tag(
        "svg",
        *marks,
        *lines,
        role="img",
        aria_label=loss_sentence(losses),
        width=_WIDTH,
        height=_HEIGHT,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
    )
    ends = tag("figcaption", f"{format_loss(losses[0])} → {format_loss(losses[-1])}")
    return tag("figure", picture, ends, class_="curve")


def loss_sentence(losses: Sequence[float]) -> str:
    """Say what a curve shows.

    >>> loss_sentence([2.3, 1.0, float("nan"), 0.5])
    'loss 2.3 to 0.5 in 4 steps, not finite in 1, first in step 2'
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    ends = f"loss {finite[0]:.3g} to {finite[-1]:.3g} in" if finite else "no finite loss in"
    bad = len(losses) - len(finite)
    where = f", not finite in {bad}, first in step {_first_nonfinite(losses)}" if bad and finite else ""
    return f"{ends} {plural(len(losses), 'step')}{where}"


def thin_curve(losses: Sequence[float], *, most_parts: int = _MAX_PARTS) -> list[Point]:
    """Return the places and losses worth drawing: all, or the extremes of each part and whatever is not finite.

    >>> len(thin_curve([0.0] * 100_000)) <= 2 * 80
    True
    """
    size = max(1, math.ceil(len(losses) / most_parts))
    if size <= 2:
        return list(enumerate(losses))
    parts = (range(begin, min(begin + size, len(losses))) for begin in range(0, len(losses), size))
    return [(place, losses[place]) for part in parts for place in _extremes(losses, part)]


def _extremes(losses: Sequence[float], part: range) -> list[int]:
    bad = [place for place in part if not math.isfinite(losses[place])]
    good = [place for place in part if math.isfinite(losses[place])]
    ends = {min(good, key=losses.__getitem__), max(good, key=losses.__getitem__)} if good else set()
    return sorted({*bad[:1], *ends})


def _stretches(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield the finite points between those that are not."""
    stretch: list[Point] = []
    for point in points:
        if math.isfinite(point[1]):
            stretch.append(point)
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _line(points: Sequence[Point], *, low: float, high: float, num_steps: int) -> Html:
    places = [(_across(step, num_steps=num_steps), _down(loss, low=low, high=high)) for step, loss in points]
    if len(places) == 1:
        return tag("circle", cx=places[0][0], cy=places[0][1], r=1.5)
    return tag("polyline", points=" ".join(f"{x},{y}" for x, y in places))


def format_loss(loss: float) -> str:
    """Write a loss with three digits."""
    return "NaN" if math.isnan(loss) else f"{loss:.3g}"


def _mark(losses: Sequence[float]) -> Html:
    """Return a line where the loss was first not finite."""
    x = _across(_first_nonfinite(losses), num_steps=len(losses))
    return tag("line", x1=x, x2=x, y1=0, y2=_HEIGHT, class_="nonfinite")


def _across(step: int, *, num_steps: int) -> float:
    return round(_MARGIN + (_WIDTH - 2 * _MARGIN) * step / max(1, num_steps - 1), 1)


def _down(loss: float, *, low: float, high: float) -> float:
    # Halved first: the difference of two large losses may be infinite.
    span = high / 2 - low / 2
    share = (loss / 2 - low / 2) / span if span > 0 else 0.0
    return round(_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * share, 1)


def _first_nonfinite(losses: Sequence[float]) -> int:
    return next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), 0)


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
    ends = f"{values[0]:.3g} to {values[-1]:.3g}{_where_nonfinite(points)}"
    room = width - len(ends) - 11  # the label, the gaps and the indent
    return f"{name:<5}  {sparkline(values, width=max(8, min(_MAX_WIDTH, room)))}  {ends}"


def _where_nonfinite(points: Sequence[Point]) -> str:
    bad = [place for place, (_, value) in enumerate(points) if not math.isfinite(value)]
    if not bad:
        return ""
    if len(bad) == len(points):
        return "; never finite"
    first = points[bad[0]][0]
    stays = len(bad) == len(points) - bad[0]
    return f"; not finite from step {first} on" if stays else f"; not finite in {len(bad)}, first in step {first}"


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
        _block(values[begin:end], bottom=bottom, top=top) for begin, end in itertools.pairwise(edges) if end > begin
    )


def _block(values: Sequence[float], *, bottom: float, top: float) -> str:
    if not all(map(math.isfinite, values)):
        return _NOT_FINITE
    # Halved first: the difference of two large losses may be infinite.
    span = top / 2 - bottom / 2
    share = (sum(value / len(values) for value in values) / 2 - bottom / 2) / span if span > 0 else 0.0
    return _BARS[round(max(0.0, min(1.0, share)) * (len(_BARS) - 1))]
