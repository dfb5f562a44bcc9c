"""One bisection of a training: the judge, the modules, the ops inside them; by loss, too, where it began by NaN."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from roundoff.errors import BisectError
from roundoff.experiments.bisect.candidates import Candidates
from roundoff.experiments.bisect.changes import Change
from roundoff.experiments.bisect.judged_trials import BaselineRuns, JudgedTrials
from roundoff.experiments.bisect.judgements import Budget, Limit, OutOfBudget
from roundoff.experiments.bisect.options import BisectOptions, OnEvent
from roundoff.experiments.bisect.smallest import SmallestSet, smallest_bad, smallest_wide
from roundoff.experiments.trials.judges import Judge, NonFiniteJudge, check_noise, choose_judge, final_loss, loss_judge
from roundoff.experiments.trials.runner import TrialRunner
from roundoff.experiments.trials.trial import TrialResult
from roundoff.words import join_words

_LIMIT_OPTIONS: dict[Limit | None, str | None] = {
    "max_runs": "--max-runs",
    "deadline_seconds": "--max-minutes",
    None: None,
}
"""The option that each limit is set by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search came to."""

    judge: Judge
    sites: tuple[str, ...] = ()
    """A smallest set; empty if the bad run is not bad."""
    modules: tuple[str, ...] = ()
    """The modules it was narrowed down from."""
    is_minimal: bool = True
    stopped_by: str | None = None
    with_them: str = ""
    """The verdict on the run with the set."""
    without: dict[str, str] = field(default_factory=dict)
    """The verdicts on the runs with all of the set but one."""
    as_it_is: str = ""
    """The verdict on the run as it is."""
    still_above: str = ""
    """What is left to blame: the set makes the losses finite, and this is the verdict on the last of them."""
    notes: tuple[str, ...] = ()
    num_runs: int = 0
    num_other_runs: int = 0


_OWN_KERNELS = (
    "ran their own kernels in the other implementation, too: what is wrong in both is not found. "
    "Compare with a function: --switch substitute=MODULE:FUNCTION."
)


class BisectSearch:
    """Searches for the sites to change. Made once per bisection: it knows how much time there is."""

    def __init__(self, trials: TrialRunner, change: Change, options: BisectOptions, *, on_event: OnEvent) -> None:
        self._trials, self._change, self._options, self._on_event = trials, change, options, on_event
        self._outer = BaselineRuns(trials, change, options, on_event=on_event)
        self._began = time.monotonic()
        self._notes = self._outer.notes

    def try_as_it_is(self) -> TrialResult:
        """Return what the training comes to if nothing is changed."""
        return self._outer.as_it_is()

    def find(self, candidates: Candidates, *, judge: Judge | None = None) -> SearchResult:
        """Return a smallest set of sites that must be changed, and its proof; judged as the options say, or by `judge`.

        Raises:
            BisectError: the training is bad even with all of them changed, or fails by itself.
        """
        sites = candidates.modules
        if not sites:
            raise BisectError.explain("There is nothing to bisect.", why="no site is left to search among.")
        if candidates.own_kernels:
            self._notes.append(f"{join_words(candidates.own_kernels, at_most=8)} {_OWN_KERNELS}")
        bad, good = self._outer.as_it_is(), self._outer.all_changed(sites)
        judge = judge or choose_judge(self._options.judge, bad=bad, good=good, references=self._outer.references)
        if not judge(bad).is_bad:
            check_noise(judge, judge(bad))
            return SearchResult(
                judge=judge,
                as_it_is=judge(bad).text,
                notes=tuple(self._notes),
                num_other_runs=self._trials.num_asked,
            )
        if isinstance(judge, NonFiniteJudge):
            self._outer.check_reference()
        self._outer.check_good(judge, good)
        judged = JudgedTrials(
            self._trials,
            self._change,
            judge,
            bad_fails=bad.exit_code != 0,
            budget=Budget(max_runs=self._options.max_runs, deadline_seconds=self._options.max_seconds),
            began=self._began,
            on_event=self._on_event,
        )
        found = self._searched(candidates, candidates.modules, judged, bad)
        is_finite_enough = self._options.judge != "auto" or not isinstance(judge, NonFiniteJudge)
        if is_finite_enough or self._options.mirror or final_loss(good) is None:
            return found
        return self._judged_by_loss(found, candidates, judged, bad=bad, good=good)

    def _judged_by_loss(
        self, found: SearchResult, candidates: Candidates, judged: JudgedTrials, *, bad: TrialResult, good: TrialResult
    ) -> SearchResult:
        """Judge what was found by NaN by its loss, too; where that is bad, search for what else is needed."""
        if found.stopped_by is not None:
            note = f"only NaN was searched for: {found.stopped_by} ended it before the loss was judged."
            return replace(found, notes=(*found.notes, note))
        by_loss = loss_judge(self._outer.references())
        saved = by_loss(self._trials(self._change.setting(found.sites)))
        found = replace(found, num_other_runs=self._trials.num_asked - judged.num_runs)
        if not saved.is_bad:
            if by_loss.reference.is_too_noisy:
                self._notes.append(f"whether its loss is good the noise does not tell: {by_loss.reference.text}.")
            return replace(found, with_them=f"finite; {saved.text}", notes=tuple(self._notes))
        if by_loss(good).is_bad:
            self._notes.append(f"with every site {self._change.noun} the loss is above, too: {by_loss(good).text}.")
            return replace(found, still_above=saved.text, notes=tuple(self._notes))
        judged.judge = by_loss
        # What was found stands first: the search keeps it, and asks what else is needed beside it.
        sites = tuple(dict.fromkeys((*found.sites, *candidates.modules)))
        more = self._searched(candidates, sites, judged, bad)
        if len(more.modules) == len(sites):  # the budget ended before anything was learned
            found = replace(found, is_minimal=more.is_minimal, stopped_by=more.stopped_by, num_runs=more.num_runs)
            return replace(found, still_above=saved.text, notes=more.notes)
        names = join_words(found.sites, at_most=8)
        note = f"NaN alone took {names}, which left {saved.text}; so the loss was searched by, too."
        return replace(more, notes=(note, *more.notes))

    def _searched(
        self, candidates: Candidates, sites: Sequence[str], judged: JudgedTrials, bad: TrialResult
    ) -> SearchResult:
        modules = self._smallest(sites, judged)
        found = self._inside(candidates, modules, judged)
        kept = frozenset(candidates.modules) - frozenset(found.sites) if self._options.mirror else found.sites
        is_proven = modules.is_minimal and (found.is_minimal or found.sites == modules.sites)
        return SearchResult(
            judge=judged.judge,
            sites=found.sites,
            modules=modules.sites,
            is_minimal=found.is_minimal,
            stopped_by=_LIMIT_OPTIONS[found.stopped_by],
            with_them=judged.verdict(kept).text,
            without=self._proof(found, judged) if is_proven and not self._options.mirror else {},
            as_it_is=judged.judge(bad).text,
            notes=tuple(self._notes),
            num_runs=judged.num_runs,
            num_other_runs=self._trials.num_asked - judged.num_runs,
        )

    def _proof(self, found: SmallestSet, judged: JudgedTrials) -> dict[str, str]:
        """Return the verdicts on the runs that show each site to be needed; the search has made them."""
        without = {site: tuple(each for each in found.sites if each != site) for site in found.sites}
        return {site: judged.verdict(others).text for site, others in without.items()}

    def _smallest(self, sites: Sequence[str], judged: JudgedTrials) -> SmallestSet:
        judged.search_among(sites)
        search, is_it = (
            (smallest_bad, judged.is_bad_without) if self._options.mirror else (smallest_wide, judged.is_good_with)
        )
        return search(sites, is_it, repeats=self._options.repeats, on_progress=judged.tell)

    def _inside(self, candidates: Candidates, modules: SmallestSet, judged: JudgedTrials) -> SmallestSet:
        """Return the ops inside the modules that suffice, or the modules if those are the answer."""
        ops = tuple(
            dict.fromkeys((*(site for site in modules.sites if ":" in site), *candidates.inside(modules.sites)))
        )
        if self._options.modules_only or self._options.mirror or len(ops) < 2 or not modules.is_minimal:
            return modules
        if set(ops) == set(modules.sites):
            return modules
        try:
            if judged.verdict(ops).is_bad:
                self._notes.append(f"whole modules: with only their {len(ops)} ops {self._change.noun} it is bad.")
                return modules
        except OutOfBudget as out:
            return replace(modules, is_minimal=False, stopped_by=out.limit)
        inner = self._smallest(ops, judged)
        if len(inner.sites) < len(ops):
            return inner
        return replace(modules, is_minimal=inner.is_minimal, stopped_by=inner.stopped_by)
