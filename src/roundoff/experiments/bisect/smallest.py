"""Finds a smallest set of sites that makes a bad run good, or the mirror: one that makes a good run bad."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
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

Holds = Callable[[Sequence[str]], bool]
"""Says whether the property holds for some of the sites. It may be called twice with a set, so it should cache."""


def minimal_subset(sites: Sequence[str], holds: Holds) -> list[str]:
    """Return some of `sites` for which `holds` is true, and false as soon as any one of them is left out.

    It must be true for all sites and false for no site. If adding sites never makes it false (the usual case), each
    member of the answer costs about `log2(len(sites))` questions, and fewer the earlier it is in `sites`. Otherwise
    the answer is still such a set, but there may be others, and smaller ones.
    """
    found = subset_by_prefixes(sites, holds)
    smaller = next((rest for rest in _leave_each_out(found) if holds(rest)), None)
    return found if smaller is None else ddmin(smaller, holds)


def subset_by_prefixes(sites: Sequence[str], holds: Holds) -> list[str]:
    """Return some of `sites` for which `holds` is true, asking about the first few before all others.

    The last site of the shortest prefix that suffices is needed; it is kept, and the sites before it are searched
    again for what else is needed. None can be left out if adding sites never makes the property false.
    """
    kept: list[str] = []
    rest = list(sites)  # at all times `holds(kept + rest)`
    while not holds(kept):
        length = _shortest_prefix(rest, lambda prefix: holds(kept + prefix))
        kept.append(rest[length - 1])
        rest = rest[: length - 1]
    return kept


def ddmin(sites: Sequence[str], holds: Holds) -> list[str]:
    """Return a subset of which no single site can be left out, by delta debugging.

    The sites are cut into pieces. A piece that suffices alone, or that can be left out, makes the set smaller;
    if there is none, the pieces are halved, down to single sites. The only assumption about `holds` is that it is
    true for all sites and false for no site; the price is up to about `len(sites) ** 2` questions.
    """
    found = list(sites)
    num_pieces = 2
    while len(found) > 1:
        pieces = _split(found, num_pieces)
        others = [[site for site in found if site not in piece] for piece in pieces]
        if (enough := _first_that_holds(pieces, holds)) is not None:
            found, num_pieces = enough, 2
        elif (enough := _first_that_holds(others, holds)) is not None:
            found, num_pieces = enough, max(num_pieces - 1, 2)
        elif num_pieces == len(found):
            break
        else:
            num_pieces = min(2 * num_pieces, len(found))
    return found


def _shortest_prefix(sites: list[str], holds: Callable[[list[str]], bool]) -> int:
    """Return a length at which the prefix suffices and one less does not; all sites are known to suffice.

    Asks about the first site, then about the first few, then halves: a good order saves questions, and a bad one costs
    two more than halving alone.
    """
    too_short, enough = 0, len(sites)
    lengths = [1, isqrt(len(sites))]
    while enough - too_short > 1:
        length = lengths.pop(0) if lengths else (too_short + enough) // 2
        if not too_short < length < enough:
            continue
        if holds(sites[:length]):
            enough = length
        else:
            too_short = length
    return enough


def _first_that_holds(candidates: list[list[str]], holds: Holds) -> list[str] | None:
    return next((candidate for candidate in candidates if holds(candidate)), None)


def _leave_each_out(sites: list[str]) -> Iterator[list[str]]:
    return (sites[:place] + sites[place + 1 :] for place in range(len(sites)))


def _split(sites: list[str], num_pieces: int) -> list[list[str]]:
    """Split into pieces whose lengths differ by at most one."""
    ends = [len(sites) * piece // num_pieces for piece in range(num_pieces + 1)]
    return [sites[start:end] for start, end in pairwise(ends)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuestion:
    """What is searched for, and what to say if there is nothing to find."""

    name: str
    all_fail: str
    """Why there is no answer if even all sites do not suffice."""
    all_fail_fix: str
    none_holds: str
    """Why there is no answer if no site is needed."""
    none_holds_fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestSet:
    """The set that a bisection found."""

    sites: tuple[str, ...]
    """In the order in which they were given."""
    is_minimal: bool
    """Whether every set with one site less was judged and does not suffice. False if the budget ended first."""
    num_runs: int
    """Calls of the judge in this search, including those for all sites and for none."""
    num_cached: int
    """Questions that needed no run, because an earlier one had answered them."""
    stopped_by: Limit | None = None
    """The limit that ended the search early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress:
    """What a bisection knows after a run."""

    num_runs: int
    num_cached: int
    smallest: tuple[str, ...] | None
    """The smallest set so far that suffices; None until all sites have been judged."""


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
    """Return a set of sites for which `judge` is true, but false with any one of them left out.

    Raises:
        BisectError: there is nothing to find, an argument is invalid, or the budget is too small to judge all and none.
    """
    if isinstance(sites, str):
        raise BisectError.explain(
            f"Invalid sites={sites!r}: it is a string, not a list.",
            why="each of its letters would be a site.",
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
    """Raise if an argument is invalid."""
    if not sites:
        raise BisectError.explain("There is nothing to bisect.", why="the list of sites is empty.")
    if twice := sorted({site for site in sites if sites.count(site) > 1}):
        raise BisectError.explain(f"Site '{twice[0]}' is listed twice.", fix="name every site once.")
    if repeats < 1 or repeats % 2 == 0:
        raise BisectError.explain(
            f"Invalid repeats={repeats}.", why="the majority decides, so it must be odd.", fix="use 1, 3, 5, ..."
        )
    for name, limit in (("max_runs", budget.max_runs), ("deadline_seconds", budget.deadline_seconds)):
        if limit is not None and limit <= 0:
            raise BisectError.explain(
                f"{name}={limit} leaves no room for a run.", fix="use more, or None for no limit."
            )


def _check_all_and_none(question: SearchQuestion, sites: tuple[str, ...], judgements: Judgements) -> None:
    """Raise if there is nothing to find: all sites must suffice, and no site must not."""
    what = f"There is nothing to bisect among {len(sites)} sites, '{sites[0]}' to '{sites[-1]}'."
    try:
        if not judgements(sites):
            raise BisectError.explain(what, why=question.all_fail, fix=question.all_fail_fix)
        if judgements(()):
            raise BisectError.explain(what, why=question.none_holds, fix=question.none_holds_fix)
    except OutOfBudget as out:
        raise BisectError.explain(
            f"The bisection has no answer: {out.limit} ended it after {judgements.num_runs} runs.",
            why="all sites, and none of them, must be judged before anything is known.",
            fix=f"raise {out.limit}.",
        ) from None


_WIDE = SearchQuestion(
    name="smallest_wide",
    all_fail="is_good is false with all of them wide, so their precision is not the cause.",
    all_fail_fix="check that is_good accepts the run without any narrow format, and that no site is missing.",
    none_holds="is_good is true with none of them wide.",
    none_holds_fix="train without changes, or make is_good stricter.",
)
_BAD = SearchQuestion(
    name="smallest_bad",
    all_fail="is_bad is false with all of them switched, so the cause is not among them.",
    all_fail_fix="check that is_bad recognises the bad run, and that no site is missing.",
    none_holds="is_bad is true with none of them switched: the run is bad on its own.",
    none_holds_fix="start from a good run, or make is_bad stricter.",
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

    This is one such set; there may be others, and smaller ones if a run needs either one site or another.

    Args:
        sites: The most suspicious first. If the first few suffice, the others are never tried.
        is_good: Makes a run in which only these sites are wide, and judges it. An exception in it ends the search.
        repeats: How many runs judge one set; an odd number, because the majority decides. Runs that cannot change the
            majority are left out. A judge that is wrong in 10 % (20 %) of the runs needs about 9 (19).
        max_runs: Call `is_good` at most this often; then the smallest set so far is returned, not proven minimal.
        deadline_seconds: Start no run later than this; likewise.
        remember_in: A file that stores every judgement. A search that finds judgements there does not repeat them, so
            the training must be the same.
        on_progress: Called after every run with what is known.

    Raises:
        BisectError: the run is bad with all sites wide, or good with none of them; or an argument is invalid.
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
    """Return a smallest set of sites that makes the run bad when only they are switched: none can be left out.

    >>> smallest_bad(["embed", "block.0", "block.1", "head"], lambda switched: {"embed", "head"} <= switched).sites
    ('embed', 'head')

    Arguments and errors are those of `smallest_wide`; `is_bad` makes a run in which only these sites are switched (to
    the narrow format, the other device, the other implementation) and says whether it is bad.
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
