"""What single curves look like."""

from __future__ import annotations

import math

import numpy as np
import pytest

from roundoff.compare.curves.curve import CurveShape, LossCurve, ShapeKind, shape_of

STEPS = np.arange(200)
NOISE = 0.02 * np.random.default_rng(0).normal(size=200)
FALLING = 2 * np.exp(-STEPS / 60) + 0.5 + NOISE


def shape(values: np.ndarray) -> CurveShape:
    return shape_of(LossCurve(name="a", steps=tuple(range(0, 10 * len(values), 10)), values=tuple(values.tolist())))


def test_a_falling_curve_falls_from_its_start_to_its_end() -> None:
    found = shape(FALLING)
    assert (found.kind, found.since, found.spikes) == (ShapeKind.FALLING, None, ())
    assert found.start == pytest.approx(2.2, abs=0.2)
    assert found.end == pytest.approx(0.6, abs=0.1)


def test_a_curve_that_stops_falling_is_flat_since_then() -> None:
    found = shape(np.where(STEPS < 50, 2.5 - STEPS / 50, 1.5) + NOISE)
    assert found.kind is ShapeKind.FALLING
    assert found.since is not None
    assert 400 <= found.since <= 550


def test_noise_around_a_level_is_flat() -> None:
    assert shape(1.5 + NOISE).kind is ShapeKind.FLAT


def test_a_curve_that_turns_rises_since_its_lowest() -> None:
    found = shape(np.abs(STEPS - 100) / 100 + 0.5 + NOISE)
    assert found.kind is ShapeKind.RISING
    assert found.since == pytest.approx(1000, abs=100)


def test_a_curve_that_ends_far_above_its_start_has_exploded() -> None:
    values = FALLING.copy()
    values[120:] *= 2.0 ** np.minimum(np.arange(80), 20)
    found = shape(values)
    assert found.kind is ShapeKind.EXPLODED
    assert found.since is not None
    assert 1200 <= found.since <= 1250


def test_single_values_far_above_are_spikes() -> None:
    values = FALLING.copy()
    values[[60, 61, 130]] *= 5
    found = shape(values)
    assert (found.kind, found.spikes) == (ShapeKind.SPIKING, (600, 1300))


def test_a_loss_below_zero_falls_and_spikes_too() -> None:
    values = FALLING - 4
    assert shape(values).kind is ShapeKind.FALLING
    values[100] += 10
    assert shape(values).spikes == (1000,)


def test_a_curve_that_ends_in_nan_is_not_finite_since_the_first_of_them() -> None:
    values = FALLING.copy()
    values[50] = math.inf
    values[150:] = math.nan
    found = shape(values)
    assert (found.kind, found.since) == (ShapeKind.NON_FINITE, 1500)
    assert (found.num_nonfinite, found.first_nonfinite) == (51, 500)


def test_a_curve_without_a_number_has_no_level() -> None:
    found = shape(np.array([math.nan, math.inf]))
    assert (found.kind, found.since, math.isnan(found.end)) == (ShapeKind.NON_FINITE, 0, True)


def test_one_value_is_flat() -> None:
    assert shape(np.array([2.0])).kind is ShapeKind.FLAT
