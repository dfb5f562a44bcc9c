"""A smallest set of sites that saves a bad run, and its mirror: a smallest set that spoils a good one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from roundoff.experiments.bisection import OnProgress, Question, Smallest, bisect
from roundoff.experiments.judgements import Budget

_WIDE = Question(
    name="smallest_wide",
    all_fail="is_good is false with all of them wide: something else than their precision spoils the run.",
    all_fail_fix="see that is_good accepts the run without any narrow format, and that no site is missing.",
    none_holds="is_good is true with none of them wide.",
    none_holds_fix="train as it is, or let is_good demand more.",
)
_BAD = Question(
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
    on_progress: OnProgress | None = None,
) -> Smallest:
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
    return bisect(
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
    on_progress: OnProgress | None = None,
) -> Smallest:
    """Return a smallest set of sites that spoils the run when only they are switched: none of them can be left out.

    >>> smallest_bad(["embed", "block.0", "block.1", "head"], lambda switched: {"embed", "head"} <= switched).sites
    ('embed', 'head')

    Args and errors are those of `smallest_wide`; `is_bad` makes a run in which only these sites are switched (to the
    narrow format, the other device, the other implementation) and says whether it is spoilt.
    """
    return bisect(
        _BAD,
        sites,
        is_bad,
        repeats=repeats,
        budget=Budget(max_runs=max_runs, deadline_seconds=deadline_seconds),
        remember_in=remember_in,
        on_progress=on_progress,
    )
