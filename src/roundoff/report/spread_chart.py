"""Accuracies with their spread over seeds as a chart: one line for each label of an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundoff.report.markup import Html, tag

_WIDTH, _HEIGHT = 860, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 150, 12, 34
_COLOURS = ("#0b63b0", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#0f766e", "#be123c", "#475569")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanAndRange:
    """The mean of several trainings, and their lowest and highest."""

    mean: float
    low: float
    high: float


def spread_chart(lines: Mapping[str, Mapping[str, MeanAndRange]], *, axis: str, name: str) -> Html:
    """Draw shares between 0 and 1: labels of `axis` from left to right, a line for each key, bars from low to high."""
    labels = list(dict.fromkeys(label for line in lines.values() for label in line))
    sentence = f"{name} by {axis}, one line for each of {', '.join(lines)}; the table has the numbers"
    drawn = [
        tag("g", *_line(line, labels, nth=nth, num_lines=len(lines)), *_legend(key, nth), color=_colour(nth))
        for nth, (key, line) in enumerate(lines.items())
    ]
    picture = tag(
        "svg",
        *_grid(labels, axis),
        *drawn,
        role="img",
        aria_label=sentence,
        width=_WIDTH,
        height=_HEIGHT,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        xmlns="http://www.w3.org/2000/svg",
        font_family="sans-serif",
        font_size=12,
    )
    return tag("figure", picture, class_="spread")


def _colour(nth: int) -> str:
    return _COLOURS[nth % len(_COLOURS)]


def _down(share: float) -> float:
    return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(1.0, max(0.0, share)), 1)


def _across(place: int, num_labels: int, *, nth: int = 0, num_lines: int = 1) -> float:
    room = (_WIDTH - _LEFT - _RIGHT) / num_labels
    return round(_LEFT + room * (place + 0.5) + (nth - (num_lines - 1) / 2) * min(6.0, room / (num_lines + 1)), 1)


def _line(line: Mapping[str, MeanAndRange], labels: Sequence[str], *, nth: int, num_lines: int) -> list[Html]:
    at = {label: _across(labels.index(label), len(labels), nth=nth, num_lines=num_lines) for label in line}
    path = " ".join(f"{at[label]},{_down(line[label].mean)}" for label in labels if label in line)
    marks = [
        part
        for label, spread in line.items()
        for part in (
            tag("line", x1=at[label], x2=at[label], y1=_down(spread.low), y2=_down(spread.high), stroke="currentColor"),
            tag("circle", cx=at[label], cy=_down(spread.mean), r=3, fill="currentColor"),
        )
    ]
    return [tag("polyline", points=path, fill="none", stroke="currentColor", stroke_opacity=0.5), *marks]


def _legend(key: str, nth: int) -> list[Html]:
    y = _TOP + 16 * nth + 8
    x = _WIDTH - _RIGHT + 14
    return [
        tag("circle", cx=x, cy=y - 4, r=3, fill="currentColor"),
        tag("text", key, x=x + 9, y=y, fill="#475569"),
    ]


def _grid(labels: Sequence[str], axis: str) -> list[Html]:
    right = _WIDTH - _RIGHT
    lines = []
    for tenth in range(0, 11, 2):
        y = _down(tenth / 10)
        lines.append(tag("line", x1=_LEFT, x2=right, y1=y, y2=y, stroke="#94a3b8", stroke_opacity=0.4))
        lines.append(tag("text", f"{tenth / 10:.1f}", x=_LEFT - 6, y=y + 4, fill="#475569", text_anchor="end"))
    for place, label in enumerate(labels):
        x = _across(place, len(labels))
        lines.append(tag("text", label, x=x, y=_HEIGHT - _BOTTOM + 16, fill="#475569", text_anchor="middle"))
    lines.append(tag("text", axis, x=right, y=_HEIGHT - 4, fill="#475569", text_anchor="end"))
    return lines
