"""A small picture of a loss curve, which is interrupted where the loss is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from roundoff.report.markup import Html, tag
from roundoff.words import plural

_WIDTH, _HEIGHT, _MARGIN = 120, 28, 2
_MAX_PARTS = 80
"""Longer curves are split into this many parts, and the extremes of each are shown, so that no spike is lost."""

Point = tuple[int, float]


def loss_curve(losses: Sequence[float]) -> Html:
    """Return the losses of consecutive steps as a picture, the first and the last one as numbers below it.

    There is a sentence for those who cannot see the picture. The height is the curve's own, from its lowest to its
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
    ends = tag("figcaption", f"{_number(losses[0])} → {_number(losses[-1])}")
    return tag("figure", picture, ends, class_="curve")


def loss_sentence(losses: Sequence[float]) -> str:
    """Say what a curve shows.

    >>> loss_sentence([2.3, 1.0, float("nan"), 0.5])
    'loss 2.3 to 0.5 in 4 steps, not finite in 1, first in step 2'
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    ends = f"loss {finite[0]:.3g} to {finite[-1]:.3g} in" if finite else "no finite loss in"
    bad = len(losses) - len(finite)
    where = f", not finite in {bad}, first in step {_first_nonfinite(losses)}" if bad else ""
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


def _number(loss: float) -> str:
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
