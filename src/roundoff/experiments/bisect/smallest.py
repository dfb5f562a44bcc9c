"""One bisection from its two outer runs to its answer; which property is searched for is up to the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundoff.errors import BisectError
from roundoff.experiments.bisect.judgements import (
    Budget,
    Judgement,
    Judgements,
    Limit,
    OutOfBudget,
    append_judgement,
    open_judgements,
)
from roundoff.experiments.bisect.subset_search import minimal_subset


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuestion:
    """What is searched for, and what to say where there is nothing to find."""

    name: str
    all_fail: str
    """Why there is no answer if not even all sites will do."""
    all_fail_fix: str
    none_holds: str
    """Why there is no answer if no site is needed."""
    none_holds_fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestSet:
    """The set that a bisection came to."""

    sites: tuple[str, ...]
    """In the order in which they were given."""
    is_minimal: bool
    """Every set with one site less was judged, and none of them will do. False if the budget ended first."""
    num_runs: int
    """Calls of the judge in this search, the two outer runs among them."""
    num_cached: int
    """Questions of the search that runs before had answered, in this search or in the file."""
    stopped_by: Limit | None = None
    """The limit that ended the search early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress:
    """What a bisection knows after one more run."""

    num_runs: int
    num_cached: int
    smallest: tuple[str, ...] | None
    """The smallest set so far that will do; None as long as not even all sites have been judged."""


OnSearchProgress = Callable[[SearchProgress], None]


def find_smallest(
    question: SearchQuestion,
    sites: Sequence[str],
    judge: Callable[[frozenset[str]], bool],
    *,
    repeats: int,
    budget: Budget,
    remember_in: Path | str | None,
    on_progress: OnSearchProgress | None,
) -> SmallestSet:
    """Return a set of sites for which `judge` is true although it is false with any one of them left out.

    Raises:
        BisectError: there is nothing to find, an argument cannot be, or the budget is too small for the outer runs.
    """
    if isinstance(sites, str):
        raise BisectError.explain(
            f"sites={sites!r} is one text.",
            why="its letters would be taken for sites.",
            fix=f"use a list: [{sites!r}].",
        )
    sites = tuple(sites)
    _check_arguments(sites, repeats=repeats, budget=budget)
    file = None if remember_in is None else Path(remember_in)

    def in_order(chosen: frozenset[str]) -> tuple[str, ...]:
        return tuple(site for site in sites if site in chosen)

    def on_run(judgement: Judgement) -> None:
        if file is not None:
            append_judgement(file, judgement)
        if on_progress is not None:
            known = judgements.smallest()
            on_progress(
                SearchProgress(
                    num_runs=judgements.num_runs,
                    num_cached=judgements.num_cached,
                    smallest=None if known is None else in_order(known),
                )
            )

    judgements = Judgements(judge=judge, repeats=repeats, budget=budget, on_run=on_run)
    if file is not None:
        judgements.remember(open_judgements(file, question=question.name, sites=sites))
    _check_all_and_none(question, sites, judgements)
    stopped_by: Limit | None = None
    try:
        found = frozenset(minimal_subset(sites, judgements))
    except OutOfBudget as out:
        found, stopped_by = judgements.smallest() or frozenset(sites), out.limit
    return SmallestSet(
        sites=in_order(found),
        is_minimal=stopped_by is None,
        num_runs=judgements.num_runs,
        num_cached=judgements.num_cached,
        stopped_by=stopped_by,
    )


def _check_arguments(sites: tuple[str, ...], *, repeats: int, budget: Budget) -> None:
    """Refuse what cannot be searched."""
    if not sites:
        raise BisectError.explain("There is nothing to bisect.", why="the list of sites is empty.")
    if twice := sorted({site for site in sites if sites.count(site) > 1}):
        raise BisectError.explain(f"Site '{twice[0]}' is listed twice.", fix="name every site once.")
    if repeats < 1 or repeats % 2 == 0:
        raise BisectError.explain(
            f"repeats={repeats} cannot be.", why="a majority must come out of it.", fix="use 1, 3, 5 ..."
        )
    for name, limit in (("max_runs", budget.max_runs), ("deadline_seconds", budget.deadline_seconds)):
        if limit is not None and limit <= 0:
            raise BisectError.explain(
                f"{name}={limit} leaves no room for a run.", fix="use more, or None for no limit."
            )


def _check_all_and_none(question: SearchQuestion, sites: tuple[str, ...], judgements: Judgements) -> None:
    """See that there is something to find: all sites will do, and none will not."""
    what = f"There is nothing to bisect among {len(sites)} sites, '{sites[0]}' to '{sites[-1]}'."
    try:
        if not judgements(sites):
            raise BisectError.explain(what, why=question.all_fail, fix=question.all_fail_fix)
        if judgements(()):
            raise BisectError.explain(what, why=question.none_holds, fix=question.none_holds_fix)
    except OutOfBudget as out:
        raise BisectError.explain(
            f"The bisection came to no answer: {out.limit} ended it after {judgements.num_runs} runs.",
            why="all sites and none of them have to be judged before anything is known.",
            fix=f"raise {out.limit}.",
        ) from None


# == A smallest set of sites that saves a bad run, and its mirror: a smallest set that spoils a good one.

_WIDE = SearchQuestion(
    name="smallest_wide",
    all_fail="is_good is false with all of them wide: something else than their precision spoils the run.",
    all_fail_fix="see that is_good accepts the run without any narrow format, and that no site is missing.",
    none_holds="is_good is true with none of them wide.",
    none_holds_fix="train as it is, or let is_good demand more.",
)
_BAD = SearchQuestion(
    name="smallest_bad",
    all_fail="is_bad is false with all of them switched: what spoils the run is not among them.",
    all_fail_fix="see that is_bad recognises the bad run, and that no site is missing.",
    none_holds="is_bad is true with none of them switched: the run is bad by itself.",
    none_holds_fix="begin with a run that is good, or let is_bad demand more.",
)


def smallest_wide(
    sites: Sequence[str],
    is_good: Callable[[frozenset[str]], bool],
    *,
    repeats: int = 1,
    max_runs: int | None = None,
    deadline_seconds: float | None = None,
    remember_in: Path | str | None = None,
    on_progress: OnSearchProgress | None = None,
) -> SmallestSet:
    """Return a smallest set of sites that must stay wide for the run to be good: none of them can be left out.

    >>> smallest_wide(["embed", "block.0", "block.1", "head"], lambda wide: "block.1" in wide).sites
    ('block.1',)

    It is one such set; there may be others, and smaller ones where a run needs either this or that.

    Args:
        sites: the most suspicious first. If the first few suffice, the others are never looked at.
        is_good: makes a run in which only these sites are wide, and judges it. What it raises ends the search.
        repeats: an odd number of runs, of which the majority decides; fewer are made if the rest cannot change it.
            A judge that errs in 10 (20) of 100 runs needs about 9 (19).
        max_runs: call `is_good` no more often; the best set so far is returned then, not proven minimal.
        deadline_seconds: begin no run later than this; likewise.
        remember_in: a file that keeps every judgement. A search that finds it there repeats none of them, so it must
            be the same training that is judged.
        on_progress: is told after every run what is known.

    Raises:
        BisectError: the run is bad with all sites wide, or good with none; or an argument cannot be.
    """
    return find_smallest(
        _WIDE,
        sites,
        is_good,
        repeats=repeats,
        budget=Budget(max_runs=max_runs, deadline_seconds=deadline_seconds),
        remember_in=remember_in,
        on_progress=on_progress,
    )


def smallest_bad(
    sites: Sequence[str],
    is_bad: Callable[[frozenset[str]], bool],
    *,
    repeats: int = 1,
    max_runs: int | None = None,
    deadline_seconds: float | None = None,
    remember_in: Path | str | None = None,
    on_progress: OnSearchProgress | None = None,
) -> SmallestSet:
    """Return a smallest set of sites that spoils the run when only they are switched: none of them can be left out.

    >>> smallest_bad(["embed", "block.0", "block.1", "head"], lambda switched: {"embed", "head"} <= switched).sites
    ('embed', 'head')

    Args and errors are those of `smallest_wide`; `is_bad` makes a run in which only these sites are switched (to the
    narrow format, the other device, the other implementation) and says whether it is spoilt.
    """
    return find_smallest(
        _BAD,
        sites,
        is_bad,
        repeats=repeats,
        budget=Budget(max_runs=max_runs, deadline_seconds=deadline_seconds),
        remember_in=remember_in,
        on_progress=on_progress,
    )
