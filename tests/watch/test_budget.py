"""What the watch may cost."""

import time

import pytest

from roundoff.watch.budget import TimeBudget


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_has_no_room_before_the_training_has_earned_it(clock: list[float]):
    budget = TimeBudget(0.02)
    budget.spend(0.01, "norms")
    budget.start_anew()
    assert not budget.has_room("norms", part=1.0)
    clock[0] = 0.49
    assert not budget.has_room("norms", part=1.0)
    clock[0] = 0.51
    assert budget.has_room("norms", part=1.0)


def test_a_task_may_take_its_part_only(clock: list[float]):
    budget = TimeBudget(0.02)
    clock[0] = 1.0
    budget.spend(0.004, "table")
    assert not budget.has_room("table", part=0.25)
    assert budget.has_room("norms", part=0.25)


def test_short_steps_may_be_watched_for_a_hundred_microseconds_each(clock: list[float]):
    budget = TimeBudget(0.02)
    clock[0] = 1e-3
    for _ in range(10):
        budget.count_step()
    budget.spend(0.0004, "norms")
    assert budget.has_room("norms", part=1.0)
    budget.spend(0.0005, "norms")
    assert not budget.has_room("norms", part=1.0)


def test_what_is_exempt_is_neither_cost_nor_training(clock: list[float]):
    budget = TimeBudget(0.02)
    clock[0] = 3.0
    budget.exempt(1.0)
    budget.spend(0.02)
    assert budget.training_seconds == pytest.approx(1.98)
    assert budget.cost == pytest.approx(0.02 / 1.98)


def test_a_budget_of_nothing_allows_nothing(clock: list[float]):
    budget = TimeBudget(0.0)
    clock[0] = 100.0
    budget.count_step()
    assert not budget.has_room("norms", part=1.0)
