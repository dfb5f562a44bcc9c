"""One search: chooses the judge, searches the modules, then the ops inside them; NaN first, then the loss."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from roundoff.errors import BisectError
from roundoff.experiments.bisect.bisect_answer import BisectAnswer, start_answer
from roundoff.experiments.bisect.bisect_options import BisectEvent, BisectOptions, OnEvent, SiteChange
from roundoff.experiments.bisect.candidates import Candidates
from roundoff.experiments.bisect.judgements import Budget, Limit, OutOfBudget
from roundoff.experiments.bisect.smallest import SearchProgress, SmallestSet, smallest_bad, smallest_wide
from roundoff.experiments.trials import judges
from roundoff.experiments.trials.runner import TrialRunner, quote_log
from roundoff.experiments.trials.trial import TrialResult, TrialSetting
from roundoff.words import join_words, plural

_LIMIT_OPTIONS: dict[Limit | None, str | None] = {
    "max_runs": "--max-runs",
    "deadline_seconds": "--max-minutes",
    None: None,
}
"""The command-line option of each limit."""


_OWN_KERNELS = (
    "ran the same kernels in the other implementation, so an error in them is not found. "
    "Compare with your own function: --switch substitute=MODULE:FUNCTION."
)


class BisectSearch:
    """Searches for the sites to change. Make one per bisection: its time budget starts when it is made."""

    def __init__(self, trials: TrialRunner, change: SiteChange, options: BisectOptions, *, on_event: OnEvent) -> None:
        self._trials, self._change, self._options, self._on_event = trials, change, options, on_event
        self._baseline = BaselineRuns(trials, change, options, on_event=on_event)
        self._began = time.monotonic()
        self._notes = self._baseline.notes

    def run_unchanged(self) -> TrialResult:
        """Return the result of the unchanged training."""
        return self._baseline.run_unchanged()

    def find(self, candidates: Candidates, *, judge: judges.Judge | None = None) -> BisectAnswer:
        """Return a smallest set of sites that must be changed, and its proof; `judge` overrides that of the options.

        Raises:
            BisectError: the training is bad even with all of them changed, or fails on its own.
        """
        sites = candidates.modules
        if not sites:
            raise BisectError.explain("There is nothing to bisect.", why="there is no site to search.")
        if candidates.own_kernels:
            self._notes.append(f"{join_words(candidates.own_kernels, at_most=8)} {_OWN_KERNELS}")
        bad, good = self.run_unchanged(), self._baseline.run_all_changed(sites)
        judge = judge or judges.choose_judge(
            self._options.judge,
            bad=bad,
            good=good,
            references=self._baseline.references,
            is_two_sided=self._options.substitute is not None,
        )
        if not judge(bad).is_bad:
            judges.check_noise(judge, judge(bad))
            if candidates.largest_difference:
                self._notes.append(f"{candidates.largest_difference}; what that does is too small to see in the loss.")
            return self._answer(candidates, judge, as_it_is=judge(bad).text, num_runs=0)
        if isinstance(judge, judges.NonFiniteJudge):
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
        is_finite_enough = self._options.judge != "auto" or not isinstance(judge, judges.NonFiniteJudge)
        if is_finite_enough or self._options.mirror or judges.final_loss(good) is None:
            return found
        return self._judge_by_loss(found, candidates, judged, bad=bad, good=good)

    def _judge_by_loss(
        self, found: BisectAnswer, candidates: Candidates, judged: JudgedTrials, *, bad: TrialResult, good: TrialResult
    ) -> BisectAnswer:
        """Judge the set that avoids NaN by its loss as well; if that is bad, search for what else is needed."""
        if found.stopped_by is not None:
            note = f"only NaN was searched for: {found.stopped_by} ended the search before the loss was judged."
            return replace(found, notes=(*found.notes, note))
        by_loss = judges.loss_judge(self._baseline.references(), is_two_sided=self._options.substitute is not None)
        saved = by_loss(self._trials(self._change.setting(found.found)))
        found = replace(found, num_other_runs=self._trials.num_requested - judged.num_runs)
        if not saved.is_bad:
            if by_loss.reference.is_too_noisy:
                self._notes.append(f"the reference is too noisy to judge the loss: {by_loss.reference.text}.")
            return replace(found, with_them=f"finite; {saved.text}", notes=tuple(self._notes))
        if by_loss(good).is_bad:
            self._notes.append(f"with every site {self._change.noun} the loss is also too high: {by_loss(good).text}.")
            return replace(found, still_above=saved.text, notes=tuple(self._notes))
        judged.judge = by_loss
        # What was found comes first, so the search keeps it and finds what else is needed.
        sites = tuple(dict.fromkeys((*found.found, *candidates.modules)))
        more = self._search(candidates, sites, judged, bad)
        if len(more.modules) == len(sites):  # the budget ended before anything was learned
            found = replace(found, is_minimal=more.is_minimal, stopped_by=more.stopped_by, num_runs=more.num_runs)
            return replace(found, still_above=saved.text, notes=more.notes)
        names = join_words(found.found, at_most=8)
        note = f"{names} avoids NaN but leaves {saved.text}, so the loss was searched as well."
        return replace(more, notes=(note, *more.notes))

    def _search(
        self, candidates: Candidates, sites: Sequence[str], judged: JudgedTrials, bad: TrialResult
    ) -> BisectAnswer:
        modules = self._smallest(sites, judged)
        found = self._search_inside(candidates, modules, judged)
        kept = frozenset(candidates.modules) - frozenset(found.sites) if self._options.mirror else found.sites
        is_proven = modules.is_minimal and (found.is_minimal or found.sites == modules.sites)
        with_them = judged.verdict(kept).text
        without = {}
        if is_proven and not self._options.mirror:  # the search has already made these runs
            others = {site: tuple(each for each in found.sites if each != site) for site in found.sites}
            without = {site: judged.verdict(chosen).text for site, chosen in others.items()}
        return self._answer(
            candidates,
            judged.judge,
            found=found.sites,
            modules=modules.sites,
            is_minimal=found.is_minimal,
            stopped_by=_LIMIT_OPTIONS[found.stopped_by],
            with_them=with_them,
            without=without,
            as_it_is=judged.judge(bad).text,
            num_runs=judged.num_runs,
        )

    def _answer(self, candidates: Candidates, judge: judges.Judge, *, num_runs: int, **found: Any) -> BisectAnswer:
        return start_answer(
            self._trials,
            self._options,
            judge,
            fmt=self._change.good_name,
            num_sites=len(candidates.modules),
            is_measured=candidates.is_measured,
            notes=tuple(self._notes),
            num_runs=num_runs,
            num_other_runs=self._trials.num_requested - num_runs,
            **found,
        )

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


# -- the trials of a search and their verdicts -------------------------------------------------------------------------


class JudgedTrials:
    """Says whether a training is good if some of its sites are changed, as long as the budget lasts."""

    def __init__(
        self,
        trials: TrialRunner,
        change: SiteChange,
        judge: judges.Judge,
        *,
        bad_fails: bool,
        budget: Budget,
        began: float,
        on_event: OnEvent,
    ) -> None:
        self.judge = judge
        self.num_runs = 0
        """How many trials the search has made, without the baseline runs."""
        self._trials, self._change, self._on_event = trials, change, on_event
        self._bad_fails, self._budget, self._began = bad_fails, budget, began
        self._times_judged: Counter[frozenset[str]] = Counter()
        self._last: tuple[frozenset[str], int | None, judges.Verdict] | None = None
        self._num_at_begin = 0
        self._num_reported = 0
        self._all: tuple[str, ...] = ()

    def search_among(self, sites: Sequence[str]) -> None:
        """Begin a search among these sites; the seeds of repeated trials start again."""
        self._all = tuple(sites)
        self._num_at_begin = self.num_runs
        self._times_judged.clear()

    def is_good_with(self, chosen: frozenset[str]) -> bool:
        """Run the training with exactly these sites changed; called again, with another seed."""
        nth = self._times_judged[chosen]
        self._times_judged[chosen] += 1
        seed = judges.trial_seeds(nth + 1)[nth]
        verdict = self.verdict(chosen, seed=seed)
        self._last = (chosen, seed, verdict)
        return not verdict.is_bad

    def is_bad_without(self, chosen: frozenset[str]) -> bool:
        """Run the training with all sites changed except these."""
        return not self.is_good_with(frozenset(self._all) - chosen)

    def verdict(self, chosen: Iterable[str], *, seed: int | None = None) -> judges.Verdict:
        """Return the verdict on the training with these sites changed.

        Raises:
            BisectError: it crashed, although the bad run does not: then there is no verdict.
            OutOfBudget: it would need a run that the budget does not allow.
        """
        setting = self._change.setting(chosen, seed=seed)
        if not self._trials.was_requested(setting):
            self._budget.check(num_runs=self.num_runs, began=self._began)
            self.num_runs += 1
        result = self._trials(setting)
        if result.exit_code and not self._bad_fails and not isinstance(self.judge, judges.ExitJudge | judges.RuleJudge):
            raise BisectError.explain(
                f"A trial of `{self._trials.target.name}` ended with exit code {result.exit_code}.",
                why=f"the bad run does not, so this says nothing about its sites{quote_log(result.folder)}",
                fix="check that it runs on its own, or judge by the exit status: --judge exit",
            )
        return self.judge(result)

    def report(self, progress: SearchProgress) -> None:
        """Report the run that has just ended, unless it was already reported."""
        assert self._last is not None
        chosen, seed, verdict = self._last
        if self.num_runs == self._num_reported:
            return
        self._num_reported = self.num_runs
        goodness = "bad" if verdict.is_bad else "good"
        at_most, is_new = self._at_most(), self._trials.trial_of(self._change.setting(chosen, seed=seed)).is_new
        left = None if at_most is None else (at_most - self.num_runs) * self._trials.seconds_each
        self._on_event(
            BisectEvent(
                what=f"{plural(len(chosen), 'site')} {self._change.noun}",
                verdict=f"{goodness}, {verdict.text}",
                num_runs=self.num_runs,
                at_most=at_most,
                known=progress.smallest or (),
                seconds_left=left if is_new else None,
                is_new=is_new,
            )
        )

    def _at_most(self) -> int | None:
        """Return how many runs are needed if there is one culprit, or allowed; None if that is not known."""
        one_culprit = self._num_at_begin + math.ceil(math.log2(max(len(self._all), 2))) + 3
        allowed = self._budget.max_runs
        if self.num_runs > one_culprit:  # there is more than one culprit
            return allowed
        return one_culprit if allowed is None else min(allowed, one_culprit)


class BaselineRuns:
    """Makes the runs that a search compares with, each once: unchanged, every site changed, the reference.

    Raises where these runs show that there is nothing to search.
    """

    def __init__(self, trials: TrialRunner, change: SiteChange, options: BisectOptions, *, on_event: OnEvent) -> None:
        self.notes: list[str] = []
        """What the user should know about them."""
        self._trials, self._change, self._options, self._on_event = trials, change, options, on_event

    def run_unchanged(self) -> TrialResult:
        """Return the result of the unchanged training."""
        return self._run("unchanged", self._change.setting(()))

    def run_all_changed(self, sites: Sequence[str]) -> TrialResult:
        """Return the result of the training with every site changed."""
        return self._run(f"all {len(sites)} sites {self._change.noun}", self._change.setting(sites))

    def references(self) -> list[TrialResult]:
        """Train the reference with several seeds.

        Raises:
            BisectError: the reference itself fails.
        """
        name, seeds = self._change.reference_name, judges.trial_seeds(self._options.seeds)
        settings = [self._change.reference(seed=seed) for seed in seeds]
        are_new = [not self._trials.was_requested(setting) for setting in settings]
        results = self._trials.run_all(settings)
        for seed, setting, is_new in zip(seeds, settings, are_new, strict=True):
            if is_new:
                self._report(f"{name}{'' if seed is None else f', seed {seed}'}", setting)
        for result in results:
            self._check_reference(result)
        note = "the noise of the reference is not known, because all its runs are equal; a margin of 1 % is used."
        if len({each.losses for each in results}) == 1 and note not in self.notes:
            self.notes.append(note)
        return results

    def check_reference(self) -> None:
        """Train the reference once; raise if it fails too, because then the format is not the cause."""
        self._check_reference(self._run(self._change.reference_name, self._change.reference()))

    def check_good(self, judge: judges.Judge, good: TrialResult) -> None:
        """Raise if changing every site does not help, with what is known about the cause."""
        target, name = self._trials.target.name, self._change.reference_name
        verdict = judge(good)
        if not verdict.is_bad:
            return
        if good.exit_code:
            raise BisectError.explain(
                f"`{target}` fails with every site {self._change.noun}: exit code {good.exit_code}.",
                why=f"a search needs one good run{quote_log(good.folder)}",
                fix="check that it runs on its own.",
            )
        reference = judge(self._run(name, self._change.reference()))
        words = target.removeprefix("roundoff ")
        raise BisectError.explain(
            f"`{target}` is bad even with every site {self._change.noun}: {verdict.text}.",
            why=f"it is also bad with {name}: {reference.text}."
            if reference.is_bad
            else f"it is good with {name} ({reference.text}).\n"
            "       So the cause is not in the sites that were searched, but in the loss scale, the format of the\n"
            "       model's inputs, the weight update, or elsewhere.",
            fix="look for another cause: roundoff run, roundoff diagnose"
            if reference.is_bad
            else f"plan a recipe, which adds a loss scale if needed: roundoff plan {words}",
        )

    def _check_reference(self, result: TrialResult) -> None:
        verdict = judges.NonFiniteJudge()(result)
        if verdict.is_bad and judges.final_loss(result) is not None:
            good = self._change.good_name
            raise BisectError.explain(
                f"`{self._trials.target.name}` also fails in {good}.",
                why=f"with {self._change.reference_name}: {verdict.text}{quote_log(result.folder)}",
                fix=f"the format is not the cause; find it first: roundoff run with {self._change.reference_name}",
            )

    def _run(self, what: str, setting: TrialSetting) -> TrialResult:
        is_first_time = not self._trials.was_requested(setting)
        result = self._trials(setting)
        if is_first_time:
            self._report(what, setting)
        return result

    def _report(self, what: str, setting: TrialSetting) -> None:
        kept = self._trials.trial_of(setting)
        has_losses = bool(kept.result.losses) or kept.result.eval_loss is not None
        judge = judges.NonFiniteJudge() if has_losses else judges.ExitJudge()
        self._on_event(BisectEvent(what=what, verdict=judge(kept.result).text, is_new=kept.is_new))
