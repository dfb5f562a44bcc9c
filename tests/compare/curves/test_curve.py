"""Curves out of what logs say, in the order in which they say it."""

from __future__ import annotations

from roundoff.compare.curves.curve import LossCurve


def test_steps_are_put_in_order_and_later_values_count() -> None:
    curve = LossCurve.of([10, 20, 30, 20, 30, 40], [5.0, 4.0, 9.0, 3.0, 2.0, 1.0], name="a")
    assert (curve.steps, curve.values) == ((10, 20, 30, 40), (5.0, 3.0, 2.0, 1.0))


def test_values_without_steps_are_numbered() -> None:
    assert LossCurve.of([None, None], [2.0, 1.0], name="a").steps == (0, 1)
    assert LossCurve.of([3, None], [2.0, 1.0], name="a").steps == (0, 1)


def test_steps_that_begin_anew_are_numbered_on() -> None:
    assert LossCurve.of([1, 2, 3, 1, 2, 3], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], name="a").steps == (0, 1, 2, 3, 4, 5)


def test_epochs_that_stand_for_many_values_are_no_steps() -> None:
    assert LossCurve.of([0, 0, 0, 1, 1, 1], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], name="a").steps == (0, 1, 2, 3, 4, 5)
