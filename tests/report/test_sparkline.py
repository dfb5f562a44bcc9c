"""Curves drawn in one line."""

from __future__ import annotations

import math

from roundoff.report.loss_curve import sparkline


def test_more_values_than_places_are_shown_by_their_means() -> None:
    assert sparkline([float(value) for value in range(64)], width=8) == "▁▂▃▄▅▆▇█"


def test_one_bad_value_among_many_is_seen() -> None:
    assert sparkline([1.0] * 50 + [math.inf] + [1.0] * 49, width=10) == "▁▁▁▁▁x▁▁▁▁"


def test_two_curves_can_share_their_bounds() -> None:
    assert sparkline([1.0, 1.0], low=0.0, high=1.0) == "██"
    assert sparkline([5.0, -5.0], low=0.0, high=1.0) == "█▁"


def test_huge_values_and_none_at_all_are_drawn() -> None:
    assert sparkline([1.7e308, -1.7e308]) == "█▁"
    assert sparkline([]) == ""
