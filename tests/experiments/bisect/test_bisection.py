from typing import Any

import pytest

from roundoff.errors import BisectError
from roundoff.experiments.bisect.smallest import smallest_wide


def never(chosen: frozenset[str]) -> bool:
    """Judge nothing: what cannot be searched is refused before any run."""
    raise AssertionError("a run was made")


@pytest.mark.parametrize(
    ("sites", "options", "message"),
    [
        ([], {}, "the list of sites is empty"),
        ("abc", {}, "Invalid sites='abc'"),
        (["embed", "head", "embed"], {}, "Site 'embed' is listed twice"),
        (["embed"], {"repeats": 0}, "Invalid repeats=0"),
        (["embed"], {"repeats": 4}, "Invalid repeats=4"),
        (["embed"], {"max_runs": 0}, "max_runs=0 leaves no room for a run"),
        (["embed"], {"deadline_seconds": -1.0}, r"deadline_seconds=-1\.0 leaves no room for a run"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_any_run(sites: list[str], options: dict[str, Any], message: str):
    with pytest.raises(BisectError, match=message):
        smallest_wide(sites, never, **options)


def test_a_budget_too_small_for_the_outer_runs_says_so():
    with pytest.raises(BisectError) as error:
        smallest_wide(["embed", "head"], lambda wide: "head" in wide, repeats=3, max_runs=3)
    assert str(error.value) == (
        "The bisection has no answer: max_runs ended it after 3 runs.\n"
        "  why: all sites, and none of them, must be judged before anything is known.\n"
        "  fix: raise max_runs."
    )


def test_what_a_judge_raises_reaches_the_caller():
    with pytest.raises(AssertionError, match="a run was made"):
        smallest_wide(["embed"], never)
