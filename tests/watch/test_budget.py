"""What the watch may cost."""

import time

import pytest

from roundoff.watch.budget import StepSchedule, TimeBudget
from roundoff.watch.settings import WatchSettings


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    monkeypatch.setattr("roundoff.watch.budget.own_seconds", lambda: now[0])
    return now


def test_has_no_room_before_the_training_has_earned_it(clock: list[float]):
    budget = TimeBudget(0.02)
    budget.spend(0.01, "norms")
    budget.end_first_steps()
    assert not budget.has_room("norms", part=1.0)
    clock[0] = 0.49
    assert not budget.has_room("norms", part=1.0)
    clock[0] = 0.51
    assert budget.has_room("norms", part=1.0)


def test_a_task_may_take_its_part_only(clock: list[float]):
    budget = TimeBudget(0.02)
    clock[0] = 1.0
    budget.add(0.004)
    budget.spend(0.004, "table")
    assert not budget.has_room("table", part=0.25)
    assert budget.has_room("norms", part=0.25)


def test_short_steps_may_be_watched_for_sixty_microseconds_each(clock: list[float]):
    budget = TimeBudget(0.02)
    clock[0] = 1e-3
    for _ in range(10):
        budget.count_step()
    budget.add(0.00025)
    budget.spend(0.00025, "norms")
    assert budget.has_room("norms", part=1.0)
    budget.add(0.0003)
    budget.spend(0.0003, "norms")
    assert not budget.has_room("norms", part=1.0)


def test_what_hooks_cost_around_their_own_clock_uses_up_the_share(clock: list[float]):
    budget = TimeBudget(0.02)
    budget.end_first_steps()
    clock[0] = 10.0
    for _ in range(1000):
        budget.count_step(155e-6)
    assert budget.has_room("norms", part=1.0, wanted=0.0)
    budget.add(4e-3)
    assert not budget.has_room("norms", part=1.0, wanted=0.0)


def test_what_is_set_aside_is_a_part_of_the_total_and_leaves_the_share_alone(clock: list[float]):
    budget = TimeBudget(0.02)
    clock[0] = 1.0
    budget.end_first_steps()
    clock[0] = 4.0
    budget.add(1.02)
    budget.set_aside(1.0, "replays")
    assert budget.spent_seconds == pytest.approx(0.02)
    assert budget.training_seconds == pytest.approx(1.98)
    assert budget.cost == pytest.approx(1.02 / 2.98)


def test_the_total_says_what_everything_was_spent_on(clock: list[float]):
    budget = TimeBudget(0.02)
    clock[0] = 2.0
    budget.add(0.5)
    budget.set_aside(0.25, "replays")
    budget.end_first_steps()
    budget.add(0.125)
    budget.set_aside(1.0, "probes", is_in_hook=False)
    clock[0] = 4.0
    budget.end()
    clock[0] = 9.0
    assert budget.parts() == {"probes": 1.0, "first steps": 0.5, "the rest": 0.125}
    assert budget.total_seconds == 1.625
    assert budget.seconds == 4.0


def test_what_was_done_before_the_script_is_part_of_the_total_and_uses_up_nothing(clock: list[float]):
    clock[0] = 10.0
    budget = TimeBudget(0.02)
    clock[0] = 13.0
    budget.count_start(8.0, of_script=1.0)
    clock[0] = 15.0
    budget.add(0.5)
    assert (budget.total_seconds, budget.is_within_start(0.5)) == (0.5, True)
    budget.end()
    assert budget.parts() == {"start": 4.0, "first steps": 0.5, "the rest": 0.0}
    assert budget.seconds == 7.0
    assert budget.cost == pytest.approx(4.5 / 2.5)


def test_taping_has_a_credit_that_nothing_else_uses_up(clock: list[float]):
    budget = TimeBudget(0.02)
    budget.end_first_steps()
    clock[0] = 10.0
    assert budget.has_room("taping", part=0.5, wanted=1.5)
    assert not budget.has_room("norms", part=1.0, wanted=1.5)
    budget.add(1.4)
    budget.spend(1.4, "taping")
    assert not budget.has_room("taping", part=0.5, wanted=0.3)
    assert budget.has_room("norms", part=1.0, wanted=0.1)


def test_the_start_may_cost_some_seconds_or_a_share(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    budget = TimeBudget(0.02)
    budget.begin_training()
    clock[0] = 4.0
    budget.add(1.4)
    assert budget.is_within_start(0.0)
    budget.add(0.6)
    assert not budget.is_within_start(0.5)
    assert budget.is_within_start(1.0)
    monkeypatch.setattr("roundoff.watch.budget.own_seconds", lambda: clock[0] / 2)  # others use the machine as well
    clock[0] = 5.0
    assert budget.is_within_start(0.0)
    monkeypatch.setattr("roundoff.watch.budget.own_seconds", lambda: clock[0])
    monkeypatch.setattr(time, "process_time", lambda: clock[0] / 2)  # or the disk
    clock[0] = 6.0
    assert budget.is_within_start(0.0)


def test_taping_may_take_as_many_steps_on_a_busy_machine(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundoff.watch.budget.own_seconds", lambda: clock[0] / 8)
    budget = TimeBudget(0.02)
    budget.begin_training()
    budget.end_first_steps()
    for taken in range(200):
        clock[0] += 0.06
        assert budget.has_taped_cheaply(0.0), f"{taken} steps of 7 ms"
        assert budget.has_room("taping", part=0.5, wanted=0.056)
        budget.spend(0.056, "taping")
    clock[0] += 1.0
    budget.spend(1.0, "taping")
    assert not budget.has_taped_cheaply(0.0)


def test_the_first_steps_do_not_use_up_the_credit_of_taping(clock: list[float]):
    budget = TimeBudget(0.02)
    budget.add(5.0)
    budget.end_first_steps()
    clock[0] = 1.0
    assert budget.has_room("taping", part=0.5, wanted=1.4)
    assert budget.has_taped_cheaply(0.05)
    budget.spend(1.6, "taping")
    assert not budget.has_taped_cheaply(0.05)
    clock[0] = 60.0
    assert budget.has_taped_cheaply(0.05)


def test_a_budget_of_nothing_allows_nothing(clock: list[float]):
    budget = TimeBudget(0.0)
    clock[0] = 100.0
    budget.count_step()
    assert not budget.has_room("norms", part=1.0)


@pytest.mark.parametrize(("seconds", "num_steps", "length"), [(0.1, 200, 64), (2.0, 200, 16), (0.001, 4, 16)])
def test_short_steps_stay_quiet_for_longer(clock: list[float], seconds: float, num_steps: int, length: int):
    budget = TimeBudget(0.02)
    for _ in range(num_steps):
        budget.count_step()
    clock[0] = seconds
    schedule = StepSchedule(WatchSettings(), budget)
    schedule.begin_quiet(640)
    assert schedule.quiet_until == 640 + length
