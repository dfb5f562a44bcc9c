import pytest

from roundoff.experiments.bisect.judgements import Budget, Judgement, Judgements, OutOfBudget

EMBED = frozenset({"embed"})


def judgements_of(answers: list[bool], *, repeats: int = 1, budget: Budget | None = None) -> Judgements:
    """Return judgements whose judge gives these answers, one after the other."""
    rest = iter(answers)
    return Judgements(
        judge=lambda _: next(rest), repeats=repeats, budget=budget or Budget(), on_run=lambda judgement: None
    )


def test_a_set_is_judged_once_whatever_its_order():
    judgements = judgements_of([True])
    assert judgements(["embed", "head"])
    assert judgements(("head", "embed"))
    assert (judgements.num_runs, judgements.num_cached) == (1, 1)


@pytest.mark.parametrize(
    ("answers", "majority", "num_runs"),
    [
        ([True, True, True], True, 3),
        ([False, False, False], False, 3),
        ([True, False, True, True], True, 4),
        ([True, False, True, False, False], False, 5),
    ],
)
def test_the_majority_decides_as_soon_as_it_is_certain(answers: list[bool], majority: bool, num_runs: int):
    judgements = judgements_of([*answers, *answers], repeats=5)
    assert judgements(["embed"]) is majority
    assert judgements.num_runs == num_runs


def test_runs_made_before_count_for_the_majority():
    judgements = judgements_of([False, True], repeats=3)
    judgements.remember([Judgement(sites=EMBED, holds=True)])
    assert judgements(["embed"])
    assert judgements.num_runs == 2


def test_a_draw_left_by_more_repeats_than_now_is_decided_by_one_more_run():
    judgements = judgements_of([False], repeats=3)
    judgements.remember(Judgement(sites=EMBED, holds=holds) for holds in (True, True, False, False))
    assert not judgements(["embed"])
    assert judgements.num_runs == 1


def test_the_smallest_set_is_one_that_holds_by_majority():
    judgements = judgements_of([], repeats=3)
    assert judgements.smallest() is None
    judgements.remember([Judgement(sites=frozenset("abc"), holds=True)] * 2)
    judgements.remember([Judgement(sites=frozenset("a"), holds=True)])
    judgements.remember([Judgement(sites=frozenset("b"), holds=False)] * 2)
    assert judgements.smallest() == frozenset("abc")


def test_no_run_beyond_the_budget_is_begun_and_memory_costs_nothing():
    judgements = judgements_of([True, False], budget=Budget(max_runs=1))
    judgements(["embed"])
    with pytest.raises(OutOfBudget) as out:
        judgements(["head"])
    assert out.value.limit == "max_runs"
    assert judgements(["embed"])
    assert judgements.num_runs == 1


@pytest.mark.parametrize(
    ("num_runs", "seconds", "limit"),
    [(2, 4.9, None), (3, 0.0, "max_runs"), (4, 9.0, "max_runs"), (0, 5.0, "deadline_seconds")],
)
def test_the_limit_that_is_reached_is_named(num_runs: int, seconds: float, limit: str | None):
    assert Budget(max_runs=3, deadline_seconds=5.0).limit_after(num_runs=num_runs, seconds=seconds) == limit


def test_without_limits_there_is_no_end():
    assert Budget().limit_after(num_runs=10**9, seconds=1e9) is None
