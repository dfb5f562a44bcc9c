"""One bisection from its two outer runs to its answer; which property is searched for is up to the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundoff.errors import BisectError
from roundoff.experiments.judgement_file import Judgement, append_judgement, open_judgements
from roundoff.experiments.judgements import Budget, Judgements, Limit, OutOfBudget
from roundoff.experiments.subset_search import minimal_subset


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is searched for, and what to say where there is nothing to find."""

    name: str
    all_fail: str
    """Why there is no answer if not even all sites will do."""
    all_fail_fix: str
    none_holds: str
    """Why there is no answer if no site is needed."""
    none_holds_fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
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
class Progress:
    """What a bisection knows after one more run."""

    num_runs: int
    num_cached: int
    smallest: tuple[str, ...] | None
    """The smallest set so far that will do; None as long as not even all sites have been judged."""


OnProgress = Callable[[Progress], None]


def bisect(
    question: Question,
    sites: Sequence[str],
    judge: Callable[[frozenset[str]], bool],
    *,
    repeats: int,
    budget: Budget,
    remember_in: Path | str | None,
    on_progress: OnProgress | None,
) -> Smallest:
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
    _check(sites, repeats=repeats, budget=budget)
    file = None if remember_in is None else Path(remember_in)

    def in_order(chosen: frozenset[str]) -> tuple[str, ...]:
        return tuple(site for site in sites if site in chosen)

    def on_run(judgement: Judgement) -> None:
        if file is not None:
            append_judgement(file, judgement)
        if on_progress is not None:
            known = judgements.smallest()
            on_progress(
                Progress(
                    num_runs=judgements.num_runs,
                    num_cached=judgements.num_cached,
                    smallest=None if known is None else in_order(known),
                )
            )

    judgements = Judgements(judge=judge, repeats=repeats, budget=budget, on_run=on_run)
    if file is not None:
        judgements.remember(open_judgements(file, question=question.name, sites=sites))
    _judge_outer_runs(question, sites, judgements)
    stopped_by: Limit | None = None
    try:
        found = frozenset(minimal_subset(sites, judgements))
    except OutOfBudget as out:
        found, stopped_by = judgements.smallest() or frozenset(sites), out.limit
    return Smallest(
        sites=in_order(found),
        is_minimal=stopped_by is None,
        num_runs=judgements.num_runs,
        num_cached=judgements.num_cached,
        stopped_by=stopped_by,
    )


def _check(sites: tuple[str, ...], *, repeats: int, budget: Budget) -> None:
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


def _judge_outer_runs(question: Question, sites: tuple[str, ...], judgements: Judgements) -> None:
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
