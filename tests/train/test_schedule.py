import math

import pytest

from roundoff.train.optimization import lr_at


def rates(schedule: str, *, total: int, warmup: int = 0) -> list[float]:
    return [lr_at(step, peak=2.0, schedule=schedule, total_steps=total, warmup_steps=warmup) for step in range(total)]


def test_the_rate_rises_step_by_step_and_reaches_its_peak_with_the_last_step_of_warm_up():
    assert rates("constant", total=6, warmup=4) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_step_divides_by_ten_after_30_60_and_80_percent():
    expected = [2.0] * 3 + [0.2] * 3 + [0.02] * 2 + [0.002] * 2
    assert rates("step", total=10) == pytest.approx(expected, rel=1e-12)


def test_cosine_falls_from_the_peak_along_half_a_wave():
    assert rates("cosine", total=4) == [2.0, 1 + math.cos(math.pi / 4), 1.0, 1 + math.cos(3 * math.pi / 4)]


def test_linear_falls_evenly_towards_zero():
    assert rates("linear", total=4) == [2.0, 1.5, 1.0, 0.5]


def test_the_fall_begins_after_warm_up():
    assert rates("linear", total=6, warmup=2) == [1.0, 2.0, 2.0, 1.5, 1.0, 0.5]


def test_constant_stays():
    assert rates("constant", total=3) == [2.0, 2.0, 2.0]
