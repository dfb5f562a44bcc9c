"""Trend and noise of curves that were made with a known trend and known noise."""

from __future__ import annotations

import numpy as np
import pytest

from roundoff.compare.curves.curve import noise_of, running_mean, running_median, shared_noise, trailing_mean

FALLING = 2 * np.exp(-np.arange(400) / 80) + 0.5


def drawn(seed: int, *, sigma: float = 0.05) -> np.ndarray:
    return FALLING + sigma * np.random.default_rng(seed).normal(size=len(FALLING))


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.2])
def test_noise_is_measured_through_a_trend(sigma: float) -> None:
    noise = noise_of(drawn(0, sigma=sigma))
    assert np.median(noise.sigma) == pytest.approx(sigma, rel=0.25)
    assert np.abs(noise.trend - FALLING)[10:-10].max() < 1.5 * sigma
    assert noise.num_alike < 2


def test_noise_that_changes_along_the_curve_is_measured_where_it_is() -> None:
    values = FALLING + np.where(np.arange(400) < 200, 0.2, 0.02) * np.random.default_rng(0).normal(size=400)
    sigma = noise_of(values).sigma
    assert sigma[:150].mean() > 5 * sigma[250:].mean()


def test_outliers_do_not_change_the_noise() -> None:
    values = drawn(0)
    values[::50] += 10
    assert np.median(noise_of(values).sigma) == pytest.approx(0.05, rel=0.25)


def test_noise_that_hangs_together_is_known_and_is_not_taken_for_less() -> None:
    values = np.zeros(2000)
    for place, number in enumerate(np.random.default_rng(0).normal(size=2000)):
        values[place] = 0.9 * values[place - 1] + number if place else number
    noise = noise_of(values)
    assert 4 < noise.num_alike < 40
    assert np.median(noise.sigma) == pytest.approx(values.std(), rel=0.4)


def test_a_smooth_curve_has_hardly_any_noise() -> None:
    assert noise_of(FALLING).sigma.max() < 0.01


def test_curves_share_the_noise_that_both_have() -> None:
    reference = noise_of(drawn(0))
    assert shared_noise(reference, noise_of(drawn(0) * 1.01), begin_alike=False).min() > 0.95
    assert np.median(shared_noise(reference, noise_of(drawn(1)), begin_alike=True)) < 0.2


def test_without_noise_the_beginning_decides_whether_curves_belong_together() -> None:
    smooth = noise_of(FALLING)
    assert shared_noise(smooth, smooth, begin_alike=True).min() == 1.0
    assert shared_noise(smooth, smooth, begin_alike=False).max() == 0.0


def test_medians_keep_a_straight_line_to_its_ends() -> None:
    line = np.linspace(3.0, 1.0, 50)
    assert running_median(line, 11) == pytest.approx(line)
    assert running_median(line[:3], 11) == pytest.approx(line[:3])


def test_medians_are_not_moved_by_an_outlier() -> None:
    values = np.ones(300)
    values[150] = 100.0
    assert (running_median(values, 101) == 1.0).all()


def test_means_run_around_and_before_a_value() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0])
    assert running_mean(values, 3).tolist() == [1.5, 2.0, 3.0, 3.5]
    mean, count = trailing_mean(values, 3)
    assert (mean.tolist(), count.tolist()) == ([1.0, 1.5, 2.0, 3.0], [1, 2, 3, 3])
