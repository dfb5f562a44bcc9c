import random
from collections.abc import Callable, Sequence
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.experiments.bisect.smallest import ddmin, minimal_subset, subset_by_prefixes


class Counted:
    """A judge that caches, and counts its calls for sets other than all sites and none."""

    def __init__(self, num_sites: int, holds: Callable[[frozenset[str]], bool]) -> None:
        self.judge = holds
        self.known: dict[frozenset[str], bool] = {frozenset(): False, frozenset(names(num_sites)): True}
        self.num_calls = 0

    def __call__(self, sites: Sequence[str]) -> bool:
        chosen = frozenset(sites)
        if chosen not in self.known:
            self.num_calls += 1
            self.known[chosen] = self.judge(chosen)
        return self.known[chosen]


def names(num_sites: int) -> list[str]:
    return [f"block.{number}" for number in range(num_sites)]


def planted(num_sites: int, *places: int) -> Counted:
    """Return a judge that wants the sites at these places, counted from 1."""
    wanted = frozenset(f"block.{place - 1}" for place in places)
    return Counted(num_sites, lambda sites: wanted <= sites)


def is_one_minimal(found: list[str], holds: Callable[[frozenset[str]], bool]) -> bool:
    return holds(frozenset(found)) and not any(holds(frozenset(found) - {site}) for site in found)


@pytest.mark.parametrize("search", [minimal_subset, subset_by_prefixes, ddmin])
@pytest.mark.parametrize("num_wanted", [1, 2, 5])
@pytest.mark.parametrize("num_sites", [8, 9, 26, 100, 500])
def test_finds_exactly_what_was_planted_wherever_it_is(search: Callable[..., list[str]], num_sites, num_wanted):
    for seed in range(20):
        places = random.Random(seed).sample(range(1, num_sites + 1), num_wanted)
        found = search(names(num_sites), planted(num_sites, *places))
        assert sorted(found) == sorted(f"block.{place - 1}" for place in places)


@pytest.mark.parametrize(("num_sites", "bar"), [(26, 8), (50, 9), (100, 10), (256, 11), (500, 12)])
def test_one_culprit_at_the_worst_place_costs_at_most(num_sites: int, bar: int):
    counts = []
    for place in range(1, num_sites + 1):
        judge = planted(num_sites, place)
        minimal_subset(names(num_sites), judge)
        counts.append(judge.num_calls)
    print(f"one of {num_sites}: at most {max(counts)}, on average {sum(counts) / num_sites:.1f}")
    assert max(counts) <= bar


def test_one_culprit_costs_by_its_place_in_the_order_of_suspicion():
    for place in range(1, 257):
        judge = planted(256, place)
        minimal_subset(names(256), judge)
        assert judge.num_calls <= 2 * log2(place) + 4, place


def test_the_first_suspect_costs_one_question():
    judge = planted(256, 1)
    assert minimal_subset(names(256), judge) == ["block.0"]
    assert judge.num_calls == 1


def test_two_culprits_among_fifty_cost_at_most_twenty():
    counts = []
    for first in range(1, 51):
        for second in range(first + 1, 51):
            judge = planted(50, first, second)
            minimal_subset(names(50), judge)
            counts.append(judge.num_calls)
    print(f"two of 50: at most {max(counts)}, on average {sum(counts) / len(counts):.1f}")
    assert max(counts) <= 20


@pytest.mark.parametrize(("num_wanted", "gain"), [(1, 1.1), (2, 1.8), (5, 2.5)])
def test_needs_fewer_calls_than_plain_ddmin(num_wanted: int, gain: float):
    by_prefixes, plain = 0, 0
    for seed in range(100):
        places = random.Random(seed).sample(range(1, 101), num_wanted)
        for search in (minimal_subset, ddmin):
            judge = planted(100, *places)
            search(names(100), judge)
            if search is ddmin:
                plain += judge.num_calls
            else:
                by_prefixes += judge.num_calls
    print(f"{num_wanted} of 100: {by_prefixes / 100:.1f} questions, plain ddmin {plain / 100:.1f}")
    assert gain * by_prefixes <= plain


@settings(max_examples=200, deadline=None)
@given(data=st.data(), num_sites=st.integers(1, 24))
def test_is_good_and_one_minimal_for_every_monotone_judge(data: st.DataObject, num_sites: int):
    sites = names(num_sites)
    ways = data.draw(st.lists(st.frozensets(st.sampled_from(sites), min_size=1), min_size=1, max_size=5))

    def holds(chosen: frozenset[str]) -> bool:
        return any(way <= chosen for way in ways)

    for search in (minimal_subset, subset_by_prefixes, ddmin):
        found = search(sites, Counted(num_sites, holds))
        assert is_one_minimal(found, holds)
        assert frozenset(found) in ways


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), num_sites=st.integers(1, 16), share=st.sampled_from([0.1, 0.3, 0.7]))
def test_is_good_and_one_minimal_for_judges_without_any_order(seed: int, num_sites: int, share: float):
    everything = frozenset(names(num_sites))

    def holds(chosen: frozenset[str]) -> bool:
        if not chosen or chosen == everything:
            return bool(chosen)
        return random.Random(f"{seed} {sorted(chosen)}").random() < share

    for search in (minimal_subset, ddmin):
        assert is_one_minimal(search(names(num_sites), Counted(num_sites, holds)), holds)


def test_ddmin_takes_over_where_one_site_only_makes_up_for_another():
    def holds(chosen: frozenset[str]) -> bool:  # block.0 is in the way, unless block.2 is there too
        return "block.1" in chosen and ("block.0" not in chosen or "block.2" in chosen)

    assert subset_by_prefixes(names(3), Counted(3, holds)) == ["block.2", "block.1"]
    assert minimal_subset(names(3), Counted(3, holds)) == ["block.1"]
