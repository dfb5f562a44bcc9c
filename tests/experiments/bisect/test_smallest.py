import hashlib
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import roundoff
from roundoff.errors import BisectError
from roundoff.experiments.bisect.smallest import SearchProgress, SmallestSet, smallest_bad, smallest_wide

SITES = [f"block.{number}" for number in range(40)]
CULPRITS = ("block.7", "block.31")


def wants(*sites: str) -> Callable[[frozenset[str]], bool]:
    return frozenset(sites).issubset


class Noisy:
    """A judge that errs in a share of its runs, each time anew, but the same way for the same seed."""

    def __init__(self, sites: Iterable[str], *, error_rate: float, seed: int) -> None:
        self.wanted = frozenset(sites)
        self.error_rate = error_rate
        self.random = random.Random(seed)

    def __call__(self, chosen: frozenset[str]) -> bool:
        return (self.wanted <= chosen) != (self.random.random() < self.error_rate)


class Interrupted:
    """A judge that records its calls, and is interrupted at its nth run."""

    def __init__(self, *, at_run: int | None) -> None:
        self.calls: list[frozenset[str]] = []
        self.at_run = at_run

    def __call__(self, chosen: frozenset[str]) -> bool:
        if len(self.calls) == self.at_run:
            raise KeyboardInterrupt
        self.calls.append(chosen)
        return wants(*CULPRITS)(chosen)


@pytest.mark.parametrize("search", [smallest_wide, smallest_bad])
def test_finds_what_was_planted_and_proves_that_nothing_can_be_left_out(search: Callable[..., SmallestSet]):
    judge = Interrupted(at_run=None)
    found = search(SITES, judge)
    assert found.sites == CULPRITS
    assert found.is_minimal
    assert found.stopped_by is None
    assert found.num_runs == len(judge.calls) == len(set(judge.calls))
    without_one = [frozenset({site}) for site in CULPRITS]
    assert {frozenset(), frozenset(SITES), frozenset(CULPRITS), *without_one} <= set(judge.calls)


def test_the_answer_is_in_the_order_of_the_sites():
    assert smallest_wide(SITES[::-1], wants(*CULPRITS)).sites == CULPRITS[::-1]


def test_everything_may_be_needed():
    assert smallest_wide(SITES, wants(*SITES)).sites == tuple(SITES)
    assert smallest_wide(["head"], wants("head")).sites == ("head",)


def test_the_public_names_lead_here():
    assert roundoff.smallest_wide is smallest_wide
    assert roundoff.smallest_bad is smallest_bad


def share_right(wanted: tuple[str, ...], *, error_rate: float, repeats: int) -> float:
    """Return the share of 200 searches that find exactly what was planted; one that gives up is wrong, too."""
    num_right, num_runs = 0, 0
    for seed in range(200):
        try:
            found = smallest_wide(SITES, Noisy(wanted, error_rate=error_rate, seed=seed), repeats=repeats)
        except BisectError:
            continue
        num_right += found.sites == wanted
        num_runs += found.num_runs
    print(f"{len(wanted)} of 40, {error_rate:.0%} wrong, {repeats} repeats: {num_right} of 200 right, {num_runs} runs")
    return num_right / 200


@pytest.mark.parametrize(("error_rate", "repeats"), [(0.1, 9), (0.2, 19)])
@pytest.mark.parametrize("wanted", [("block.21",), CULPRITS], ids=len)
def test_a_noisy_judge_is_right_in_95_of_100_searches_if_repeated(error_rate: float, repeats: int, wanted):
    assert share_right(wanted, error_rate=error_rate, repeats=repeats) >= 0.95


@pytest.mark.parametrize("error_rate", [0.1, 0.2])
def test_a_noisy_judge_without_repeats_is_mostly_wrong(error_rate: float):
    assert share_right(CULPRITS, error_rate=error_rate, repeats=1) < 0.5


def test_any_number_of_runs_gives_the_best_set_so_far():
    whole = smallest_wide(SITES, wants(*CULPRITS))
    lengths = []
    for max_runs in range(2, whole.num_runs):
        found = smallest_wide(SITES, wants(*CULPRITS), max_runs=max_runs)
        assert (found.num_runs, found.is_minimal, found.stopped_by) == (max_runs, False, "max_runs")
        assert set(CULPRITS) <= set(found.sites)
        lengths.append(len(found.sites))
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1]) == (40, 2)
    assert smallest_wide(SITES, wants(*CULPRITS), max_runs=whole.num_runs) == whole


def test_no_run_begins_after_the_deadline():
    calls: list[frozenset[str]] = []

    def slow_from_the_third_run_on(chosen: frozenset[str]) -> bool:
        calls.append(chosen)
        time.sleep(0.5 if len(calls) > 2 else 0)
        return wants(*CULPRITS)(chosen)

    found = smallest_wide(SITES, slow_from_the_third_run_on, deadline_seconds=0.5)
    assert (found.is_minimal, found.stopped_by) == (False, "deadline_seconds")
    assert found.num_runs == len(calls) == 3
    assert set(CULPRITS) <= set(found.sites)


def test_progress_reports_runs_and_the_smallest_set_so_far():
    reported: list[SearchProgress] = []
    found = smallest_wide(SITES, wants(*CULPRITS), on_progress=reported.append)
    assert [progress.num_runs for progress in reported] == list(range(1, found.num_runs + 1))
    lengths = [len(progress.smallest or ()) for progress in reported]
    assert lengths == sorted(lengths, reverse=True)
    assert reported[0].smallest == tuple(SITES)
    assert reported[-1].smallest == found.sites


def test_progress_knows_no_set_until_all_sites_are_judged():
    reported: list[SearchProgress] = []
    smallest_wide(SITES, wants(*CULPRITS), repeats=3, on_progress=reported.append)
    assert [progress.smallest for progress in reported[:2]] == [None, tuple(SITES)]


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_search_interrupted_anywhere_goes_on_without_repeating_a_run(tmp_path: Path, repeats: int):
    whole = Interrupted(at_run=None)
    expected = smallest_wide(SITES, whole, repeats=repeats)
    for at_run in range(len(whole.calls)):
        path = tmp_path / f"{at_run}.jsonl"
        first, second = Interrupted(at_run=at_run), Interrupted(at_run=None)
        with pytest.raises(KeyboardInterrupt):
            smallest_wide(SITES, first, repeats=repeats, remember_in=path)
        found = smallest_wide(SITES, second, repeats=repeats, remember_in=path)
        assert found.sites == expected.sites
        assert first.calls + second.calls == whole.calls


def test_a_search_out_of_budget_goes_on_from_its_file(tmp_path: Path):
    path = tmp_path / "bisect.jsonl"
    found = [smallest_wide(SITES, wants(*CULPRITS), max_runs=5, remember_in=path) for _ in range(5)]
    assert [each.is_minimal for each in found].index(True) == (smallest_wide(SITES, wants(*CULPRITS)).num_runs - 1) // 5
    assert found[-1].sites == CULPRITS
    assert found[-1].num_runs == 0
    assert found[-1].num_cached > 0


def test_what_was_remembered_for_one_question_does_not_answer_the_other(tmp_path: Path):
    smallest_wide(SITES, wants(*CULPRITS), remember_in=tmp_path / "bisect.jsonl")
    with pytest.raises(BisectError, match="holds the judgements of another bisection"):
        smallest_bad(SITES, wants(*CULPRITS), remember_in=tmp_path / "bisect.jsonl")


def test_a_judge_that_follows_no_order_gets_an_answer_that_was_judged():
    def holds(chosen: frozenset[str]) -> bool:
        if len(chosen) in (0, len(SITES)):
            return bool(chosen)
        return hashlib.sha256(" ".join(sorted(chosen)).encode()).digest()[0] < 100

    found = smallest_bad(SITES, holds)
    chosen = frozenset(found.sites)
    assert holds(chosen)
    assert not any(holds(chosen - {site}) for site in chosen)


def test_a_run_that_is_bad_with_all_sites_wide_has_no_answer():
    with pytest.raises(BisectError) as error:
        smallest_wide(["embed", "block", "head"], wants("norm"))
    assert str(error.value) == (
        "There is nothing to bisect among 3 sites, 'embed' to 'head'.\n"
        "  why: is_good is false with all of them wide, so their precision is not the cause.\n"
        "  fix: check that is_good accepts the run without any narrow format, and that no site is missing."
    )


def test_a_run_that_is_good_with_nothing_wide_has_no_answer():
    with pytest.raises(BisectError) as error:
        smallest_wide(["embed", "block", "head"], wants())
    assert str(error.value) == (
        "There is nothing to bisect among 3 sites, 'embed' to 'head'.\n"
        "  why: is_good is true with none of them wide.\n"
        "  fix: train without changes, or make is_good stricter."
    )


def test_the_mirror_says_in_its_own_words_that_there_is_no_answer():
    with pytest.raises(BisectError, match="is_bad is false with all of them switched"):
        smallest_bad(["embed", "head"], wants("norm"))
    with pytest.raises(BisectError, match="is_bad is true with none of them switched: the run is bad on its own"):
        smallest_bad(["embed", "head"], wants())
