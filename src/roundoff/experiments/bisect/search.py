"""One search: chooses the judge, searches the modules, then the ops inside them; NaN first, then the loss."""

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
"""The command-line option of each limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search."""

    judge: Judge
    sites: tuple[str, ...] = ()
    """A smallest set; empty if the bad run is not bad."""
    modules: tuple[str, ...] = ()
    """The modules that contain them."""
    is_minimal: bool = True
    stopped_by: str | None = None
    with_them: str = ""
    """The verdict on the run with the set changed."""
    without: dict[str, str] = field(default_factory=dict)
    """By site, the verdict on the run with all of the set changed except that site."""
    as_it_is: str = ""
    """The verdict on the unchanged run."""
    still_above: str = ""
    """The set makes the losses finite but not good: the verdict on them."""
    notes: tuple[str, ...] = ()
    num_runs: int = 0
    num_other_runs: int = 0


_OWN_KERNELS = (
    "ran the same kernels in the other implementation, so an error in them is not found. "
    "Compare with your own function: --switch substitute=MODULE:FUNCTION."
)


class BisectSearch:
    """Searches for the sites to change. Make one per bisection: its time budget starts when it is made."""

    def __init__(self, trials: TrialRunner, change: Change, options: BisectOptions, *, on_event: OnEvent) -> None:
        self._trials, self._change, self._options, self._on_event = trials, change, options, on_event
        self._baseline = BaselineRuns(trials, change, options, on_event=on_event)
        self._began = time.monotonic()
        self._notes = self._baseline.notes

    def run_unchanged(self) -> TrialResult:
        """Return the result of the unchanged training."""
        return self._baseline.unchanged()

    def find(self, candidates: Candidates, *, judge: Judge | None = None) -> SearchResult:
        """Return a smallest set of sites that must be changed, and its proof; `judge` overrides that of the options.

        Raises:
            BisectError: the training is bad even with all of them changed, or fails on its own.
        """
        sites = candidates.modules
        if not sites:
            raise BisectError.explain("There is nothing to bisect.", why="there is no site to search.")
        if candidates.own_kernels:
            self._notes.append(f"{join_words(candidates.own_kernels, at_most=8)} {_OWN_KERNELS}")
        bad, good = self._baseline.unchanged(), self._baseline.all_changed(sites)
        judge = judge or choose_judge(self._options.judge, bad=bad, good=good, references=self._baseline.references)
        if not judge(bad).is_bad:
            check_noise(judge, judge(bad))
            return SearchResult(
                judge=judge,
                as_it_is=judge(bad).text,
                notes=tuple(self._notes),
                num_other_runs=self._trials.num_requested,
            )
        if isinstance(judge, NonFiniteJudge):
            self._baseline.check_reference()
        self._baseline.check_good(judge, good)
        judged = JudgedTrials(
            self._trials,
            self._change,
            judge,
            bad_fails=bad.exit_code != 0,
            budget=Budget(max_runs=self._options.max_runs, deadline_seconds=self._options.max_seconds),
            began=self._began,
            on_event=self._on_event,
        )
        found = self._search(candidates, candidates.modules, judged, bad)
        is_finite_enough = self._options.judge != "auto" or not isinstance(judge, NonFiniteJudge)
        if is_finite_enough or self._options.mirror or final_loss(good) is None:
            return found
        return self._judge_by_loss(found, candidates, judged, bad=bad, good=good)

    def _judge_by_loss(
        self, found: SearchResult, candidates: Candidates, judged: JudgedTrials, *, bad: TrialResult, good: TrialResult
    ) -> SearchResult:
        """Judge the set that avoids NaN by its loss as well; if that is bad, search for what else is needed."""
        if found.stopped_by is not None:
            note = f"only NaN was searched for: {found.stopped_by} ended the search before the loss was judged."
            return replace(found, notes=(*found.notes, note))
        by_loss = loss_judge(self._baseline.references())
        saved = by_loss(self._trials(self._change.setting(found.sites)))
        found = replace(found, num_other_runs=self._trials.num_requested - judged.num_runs)
        if not saved.is_bad:
            if by_loss.reference.is_too_noisy:
                self._notes.append(f"the reference is too noisy to judge the loss: {by_loss.reference.text}.")
            return replace(found, with_them=f"finite; {saved.text}", notes=tuple(self._notes))
        if by_loss(good).is_bad:
            self._notes.append(f"with every site {self._change.noun} the loss is also too high: {by_loss(good).text}.")
            return replace(found, still_above=saved.text, notes=tuple(self._notes))
        judged.judge = by_loss
        # What was found comes first, so the search keeps it and asks what else is needed.
        sites = tuple(dict.fromkeys((*found.sites, *candidates.modules)))
        more = self._search(candidates, sites, judged, bad)
        if len(more.modules) == len(sites):  # the budget ended before anything was learned
            found = replace(found, is_minimal=more.is_minimal, stopped_by=more.stopped_by, num_runs=more.num_runs)
            return replace(found, still_above=saved.text, notes=more.notes)
        names = join_words(found.sites, at_most=8)
        note = f"{names} avoids NaN but leaves {saved.text}, so the loss was searched as well."
        return replace(more, notes=(note, *more.notes))

    def _search(
        self, candidates: Candidates, sites: Sequence[str], judged: JudgedTrials, bad: TrialResult
    ) -> SearchResult:
        modules = self._smallest(sites, judged)
        found = self._search_inside(candidates, modules, judged)
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
            num_other_runs=self._trials.num_requested - judged.num_runs,
        )

    def _proof(self, found: SmallestSet, judged: JudgedTrials) -> dict[str, str]:
        """Return the verdicts on the runs that show that each site is needed; the search has already made them."""
        without = {site: tuple(each for each in found.sites if each != site) for site in found.sites}
        return {site: judged.verdict(others).text for site, others in without.items()}

    def _smallest(self, sites: Sequence[str], judged: JudgedTrials) -> SmallestSet:
        judged.search_among(sites)
        search, is_it = (
            (smallest_bad, judged.is_bad_without) if self._options.mirror else (smallest_wide, judged.is_good_with)
        )
        return search(sites, is_it, repeats=self._options.repeats, on_progress=judged.report)

    def _search_inside(self, candidates: Candidates, modules: SmallestSet, judged: JudgedTrials) -> SmallestSet:
        """Return the ops inside the modules that suffice, or the modules if their ops alone do not."""
        ops = tuple(
            dict.fromkeys((*(site for site in modules.sites if ":" in site), *candidates.inside(modules.sites)))
        )
        if self._options.modules_only or self._options.mirror or len(ops) < 2 or not modules.is_minimal:
            return modules
        if set(ops) == set(modules.sites):
            return modules
        try:
            if judged.verdict(ops).is_bad:
                self._notes.append(
                    f"whole modules are needed: with only their {len(ops)} ops {self._change.noun} it is bad."
                )
                return modules
        except OutOfBudget as out:
            return replace(modules, is_minimal=False, stopped_by=out.limit)
        inner = self._smallest(ops, judged)
        if len(inner.sites) < len(ops):
            return inner
        return replace(modules, is_minimal=inner.is_minimal, stopped_by=inner.stopped_by)
