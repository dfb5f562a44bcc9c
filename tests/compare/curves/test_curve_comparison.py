"""Two curves: silence for another seed, and the right step for everything else; made up, and of real trainings."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from roundoff.compare.curves.curve import LossCurve, ShapeKind
from roundoff.compare.curves.curve_comparison import compare_curves
from roundoff.errors import CompareError
from roundoff.report.comparisons.compared_curves import ComparedCurves
from roundoff.train import load_digits

NUM_STEPS = 300
MIDDLE = 150
Values = NDArray[np.float64]


def curve(values: Values | list[float], *, every: int = 1, first: int = 0) -> LossCurve:
    return LossCurve(
        name="a",
        steps=tuple(range(first, first + every * len(values), every)),
        values=tuple(float(value) for value in values),
    )


def trend(num_steps: int = NUM_STEPS) -> Values:
    return 2 * np.exp(-np.arange(num_steps) / (num_steps / 6)) + 0.5


def noisy(seed: int, *, level: Values | None = None, noise: float = 0.03) -> Values:
    values = trend() if level is None else level
    return values * (1 + noise * np.random.default_rng(seed).normal(size=len(values)))


LEVELS = {
    "falling": trend(),
    "slow": 10 * (np.arange(NUM_STEPS) + 10.0) ** -0.3,
    "flat": np.full(NUM_STEPS, 1.5),
    "below zero": trend() - 4,
    "warm-up": np.concatenate([np.full(75, 2.5), trend()[:225]]),
}


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS.keys())
@pytest.mark.parametrize("noise", [0.005, 0.03, 0.2])
def test_the_same_trend_with_other_noise_is_no_difference(level: Values, noise: float) -> None:
    for seed in range(10):
        reference, candidate = noisy(seed, level=level, noise=noise), noisy(100 + seed, level=level, noise=noise)
        assert not compare_curves(curve(reference), curve(candidate)).differs


def smoothed(seed: int) -> Values:
    """Noise as a log shows it that keeps an average: each value is mostly the one before it."""
    values = np.zeros(NUM_STEPS)
    for step, number in enumerate(np.random.default_rng(seed).normal(size=NUM_STEPS)):
        values[step] = 0.9 * values[step - 1] + 0.1 * number if step else 0.0
    return trend() * (1 + 0.1 * values)


def test_noise_that_hangs_together_is_no_difference() -> None:
    for seed in range(10):
        assert not compare_curves(curve(smoothed(seed)), curve(smoothed(100 + seed))).differs


def test_other_start_values_that_are_soon_forgotten_are_no_difference() -> None:
    level = trend() * (1 + 0.1 * np.exp(-np.arange(NUM_STEPS) / 30))
    assert not compare_curves(curve(noisy(0, noise=0.01)), curve(noisy(1, level=level, noise=0.01))).differs


def test_a_single_outlier_is_no_difference() -> None:
    reference, candidate = noisy(0), noisy(1)
    candidate[MIDDLE] *= 1.5
    assert not compare_curves(curve(reference), curve(candidate)).differs


def test_a_noisier_candidate_is_no_difference() -> None:
    assert not compare_curves(curve(noisy(0)), curve(noisy(1, noise=0.08))).differs


def test_curves_that_are_the_same_are_called_identical() -> None:
    comparison = compare_curves(curve(noisy(0)), curve(noisy(0)))
    assert comparison.num_identical == NUM_STEPS
    assert not comparison.differs


def test_it_is_counted_how_long_curves_are_identical() -> None:
    reference = noisy(0)
    candidate = np.concatenate([reference[:37], noisy(1)[37:]])
    comparison = compare_curves(curve(reference), curve(candidate))
    assert comparison.num_identical == 37
    assert not comparison.differs


@pytest.mark.parametrize("seed", [0, 1], ids=["the same noise", "another seed"])
def test_an_explosion_is_found_at_its_step(seed: int) -> None:
    candidate = noisy(seed)
    candidate[MIDDLE:] *= np.minimum(1.5 ** np.arange(1, MIDDLE + 1), 1e6)
    comparison = compare_curves(curve(noisy(0)), curve(candidate))
    assert comparison.first_divergence == MIDDLE
    assert comparison.stretches[0].lasts
    assert comparison.candidate_shape.kind is ShapeKind.EXPLODED
    assert MIDDLE <= (comparison.candidate_shape.since or 0) <= MIDDLE + 5
    assert comparison.reference_shape.kind is ShapeKind.FALLING


def test_an_explosion_in_the_last_steps_is_found() -> None:
    candidate = noisy(1)
    candidate[-3:] *= [4, 16, 64]
    assert compare_curves(curve(noisy(0)), curve(candidate)).first_divergence == NUM_STEPS - 3


@pytest.mark.parametrize("num_steps", [5, 8, 10, 20])
def test_a_short_curve_explodes_too(num_steps: int) -> None:
    reference, candidate = noisy(0, level=trend(num_steps)), noisy(1, level=trend(num_steps))
    candidate[-3:] *= [3, 9, 27]
    first = compare_curves(curve(reference), curve(candidate)).first_divergence
    assert first is not None
    assert num_steps - 5 <= first <= num_steps - 3


def test_a_loss_that_becomes_nan_is_found_at_its_step() -> None:
    candidate = noisy(1)
    candidate[MIDDLE:] = math.nan
    comparison = compare_curves(curve(noisy(0)), curve(candidate))
    assert comparison.first_divergence == MIDDLE
    assert (comparison.candidate_shape.kind, comparison.candidate_shape.since) == (ShapeKind.NON_FINITE, MIDDLE)
    assert math.isnan(comparison.end_candidate)


def test_a_single_nan_is_a_difference_that_does_not_last() -> None:
    candidate = noisy(1)
    candidate[MIDDLE] = math.nan
    (stretch,) = compare_curves(curve(noisy(0)), curve(candidate)).stretches
    assert (stretch.first_step, stretch.last_step, stretch.lasts) == (MIDDLE, MIDDLE, False)


def test_nan_in_both_is_no_difference() -> None:
    reference, candidate = noisy(0), noisy(1)
    reference[MIDDLE:] = candidate[MIDDLE:] = math.nan
    assert not compare_curves(curve(reference), curve(candidate)).differs


def test_a_curve_without_any_number_differs_from_the_first_step() -> None:
    assert compare_curves(curve(noisy(0)), curve([math.nan] * NUM_STEPS)).first_divergence == 0


@pytest.mark.parametrize("seed", [0, 1], ids=["the same noise", "another seed"])
def test_a_plateau_is_found_soon_after_it_begins(seed: int) -> None:
    level = trend()
    level[60:] = level[60]
    comparison = compare_curves(curve(noisy(0, noise=0.01)), curve(noisy(seed, level=level, noise=0.01)))
    assert 60 <= (comparison.first_divergence or 0) <= 75
    assert comparison.stretches[0].lasts
    assert 40 <= (comparison.candidate_shape.since or 0) <= 65


@pytest.mark.parametrize("noise", [0.005, 0.03, 0.1])
def test_a_slow_drift_of_two_percent_is_found_where_the_batches_are_the_same(noise: float) -> None:
    drift = 1 + 0.02 * np.arange(NUM_STEPS) / NUM_STEPS
    comparison = compare_curves(curve(noisy(0, noise=noise)), curve(noisy(0, noise=noise) * drift))
    assert comparison.first_divergence is not None
    assert comparison.stretches[-1].lasts
    assert comparison.shared_noise > 0.9


def test_a_slow_drift_is_found_in_a_flat_loss_of_another_seed() -> None:
    flat = np.full(1000, 2.0)
    drift = 1 + 0.02 * np.arange(1000) / 1000
    comparison = compare_curves(
        curve(noisy(0, level=flat, noise=0.01)), curve(noisy(1, level=flat * drift, noise=0.01))
    )
    assert 500 <= (comparison.first_divergence or 0) < 1000


@pytest.mark.parametrize("seed", [0, 1], ids=["the same noise", "another seed"])
def test_a_spike_that_recovers_is_named_and_is_not_where_the_curves_part(seed: int) -> None:
    candidate = noisy(seed)
    candidate[MIDDLE : MIDDLE + 3] *= [8, 5, 3]
    comparison = compare_curves(curve(noisy(0)), curve(candidate))
    assert comparison.spikes == (MIDDLE,)
    assert comparison.first_divergence is None
    assert comparison.differs
    assert comparison.candidate_shape.kind is ShapeKind.SPIKING


def test_a_long_spike_that_recovers_is_a_stretch_that_ends() -> None:
    candidate = noisy(1)
    candidate[MIDDLE : MIDDLE + 25] *= 1 + 7 * np.exp(-np.arange(25) / 8)
    (stretch,) = compare_curves(curve(noisy(0)), curve(candidate)).stretches
    assert stretch.first_step == MIDDLE
    assert MIDDLE + 15 <= stretch.last_step <= MIDDLE + 40
    assert not stretch.lasts


def test_spikes_that_the_reference_has_too_are_no_difference() -> None:
    reference, candidate = noisy(0), noisy(1)
    reference[50] *= 6
    candidate[200] *= 7
    assert not compare_curves(curve(reference), curve(candidate)).differs


def test_steps_are_lined_up_by_number() -> None:
    reference, candidate = noisy(0), noisy(1)
    comparison = compare_curves(curve(reference), curve(candidate[::10], every=10))
    assert [point.step for point in comparison.points] == list(range(0, NUM_STEPS, 10))
    assert not comparison.is_interpolated
    assert not comparison.differs


def test_a_shorter_candidate_is_compared_as_far_as_it_goes() -> None:
    comparison = compare_curves(curve(noisy(0)), curve(noisy(1)[:100]))
    assert len(comparison.points) == 100
    assert not comparison.differs


def test_values_between_steps_are_taken_where_both_were_logged_at_others() -> None:
    comparison = compare_curves(curve(noisy(0)[::2], every=2), curve(noisy(1)[1::2], every=2, first=1))
    assert comparison.is_interpolated
    assert not comparison.differs


def test_curves_without_a_common_step_cannot_be_compared() -> None:
    with pytest.raises(CompareError, match="one has steps 0 to 2, the other 100 to 102"):
        compare_curves(curve([3.0, 2.0, 1.0]), curve([3.0, 2.0, 1.0], first=100))


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_very_short_curves_are_compared_too(num_steps: int) -> None:
    comparison = compare_curves(curve(trend()[:num_steps]), curve(trend()[:num_steps]))
    assert comparison.num_identical == num_steps


ANY_CURVES = st.lists(st.floats(width=64), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@example(reference=[0.0, math.inf, 0.0], candidate=[-math.inf, 0.0, math.inf], every=1, first=0)
@given(reference=ANY_CURVES, candidate=ANY_CURVES, every=st.integers(1, 3), first=st.integers(-2, 2))
def test_whatever_was_logged_is_compared_and_reported(
    reference: list[float], candidate: list[float], every: int, first: int
) -> None:
    try:
        comparison = compare_curves(curve(reference), curve(candidate, every=every, first=first))
    except CompareError:
        return
    assert comparison.num_identical <= len(comparison.points)
    assert ComparedCurves(comparison).text()


def test_an_explosion_after_the_common_steps_does_not_count() -> None:
    assert not compare_curves(curve(noisy(0)[:5]), curve([*noisy(0)[:5], 1e6, 1e9, 1e9, 1e9])).differs


@functools.cache
def trained(
    seed: int, *, lr: float = 0.1, batch_size: int = 64, width: int = 64, bfloat16: bool = False, stop_at: int = 200
) -> LossCurve:
    """Train a small network on the digits for 200 steps; from `stop_at` on it learns nothing."""
    images, labels = load_digits()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for step in range(200):
        batch = torch.randint(0, len(labels), (batch_size,))
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        if step < stop_at:
            optimizer.step()
        losses.append(loss.item())
    return curve(losses)


@pytest.mark.parametrize("batch_size", [8, 64, 512])
def test_real_trainings_with_other_seeds_do_not_differ(batch_size: int) -> None:
    for seed in range(1, 4):
        comparison = compare_curves(trained(0, batch_size=batch_size), trained(seed, batch_size=batch_size))
        assert not comparison.differs
        assert comparison.shared_noise < 0.3


def test_a_real_training_in_bfloat16_does_not_differ_and_shares_the_noise() -> None:
    comparison = compare_curves(trained(0), trained(0, bfloat16=True))
    assert not comparison.differs
    assert comparison.shared_noise > 0.9


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("factor", [3, 1 / 3])
def test_a_real_training_with_another_learning_rate_differs_from_early_on(seed: int, factor: float) -> None:
    comparison = compare_curves(trained(0), trained(seed, lr=0.1 * factor))
    assert comparison.first_divergence is not None
    assert comparison.first_divergence <= 30
    assert (comparison.stretches[0].candidate < comparison.stretches[0].reference) == (factor > 1)


def test_a_real_training_that_stops_learning_differs_from_then_on() -> None:
    comparison = compare_curves(trained(0), trained(0, stop_at=60))
    assert comparison.num_identical == 61
    assert 60 < (comparison.first_divergence or 0) <= 70
    assert comparison.stretches[-1].lasts
