"""The trials of a search and their verdicts: sets of sites that are changed, and the runs to compare them with."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from roundoff.errors import BisectError
from roundoff.experiments.bisect.changes import Change
from roundoff.experiments.bisect.judgements import Budget, OutOfBudget
from roundoff.experiments.bisect.options import BisectEvent, BisectOptions, OnEvent
from roundoff.experiments.bisect.smallest import SearchProgress
from roundoff.experiments.trials.judges import ExitJudge, Judge, NonFiniteJudge, RuleJudge, Verdict, final_loss
from roundoff.experiments.trials.runner import TrialRunner, quote_log
from roundoff.experiments.trials.trial import TrialResult, TrialSetting
from roundoff.words import plural

_FIRST_SEED = 1000


def trial_seeds(number: int) -> list[int | None]:
    """Return the training's own seed (None) and others, far from those that people usually choose."""
    return [None, *range(_FIRST_SEED, _FIRST_SEED + number - 1)]


class JudgedTrials:
    """Says whether a training is good if some of its sites are changed, as long as the budget lasts."""

    def __init__(
        self,
        trials: TrialRunner,
        change: Change,
        judge: Judge,
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
        self._last: tuple[frozenset[str], int | None, Verdict] | None = None
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
        seed = trial_seeds(nth + 1)[nth]
        verdict = self.verdict(chosen, seed=seed)
        self._last = (chosen, seed, verdict)
        return not verdict.is_bad

    def is_bad_without(self, chosen: frozenset[str]) -> bool:
        """Run the training with all sites changed except these."""
        return not self.is_good_with(frozenset(self._all) - chosen)

    def verdict(self, chosen: Iterable[str], *, seed: int | None = None) -> Verdict:
        """Return the verdict on the training with these sites changed.

        Raises:
            BisectError: it crashed, although the bad run does not: then there is no verdict.
            OutOfBudget: it would need a run that the budget does not allow.
        """
        setting = self._change.setting(chosen, seed=seed)
        if not self._trials.was_requested(setting):
            self._check_budget()
            self.num_runs += 1
        result = self._trials(setting)
        if result.exit_code and not self._bad_fails and not isinstance(self.judge, ExitJudge | RuleJudge):
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
        at_most, is_new = self._at_most(), self._trials.finished(self._change.setting(chosen, seed=seed)).is_new
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

    def _check_budget(self) -> None:
        seconds = time.monotonic() - self._began
        if limit := self._budget.exceeded(num_runs=self.num_runs, seconds=seconds):
            raise OutOfBudget(limit)


class BaselineRuns:
    """Makes the runs that a search compares with, each once: unchanged, every site changed, the reference.

    Raises where these runs show that there is nothing to search.
    """

    def __init__(self, trials: TrialRunner, change: Change, options: BisectOptions, *, on_event: OnEvent) -> None:
        self.notes: list[str] = []
        """What the user should know about them."""
        self._trials, self._change, self._options, self._on_event = trials, change, options, on_event

    def unchanged(self) -> TrialResult:
        """Return the result of the unchanged training."""
        return self._run("unchanged", self._change.setting(()))

    def all_changed(self, sites: Sequence[str]) -> TrialResult:
        """Return the result of the training with every site changed."""
        return self._run(f"all {len(sites)} sites {self._change.noun}", self._change.setting(sites))

    def references(self) -> list[TrialResult]:
        """Train the reference with several seeds.

        Raises:
            BisectError: the reference itself fails.
        """
        name, seeds = self._change.reference_name, trial_seeds(self._options.seeds)
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

    def check_good(self, judge: Judge, good: TrialResult) -> None:
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
        verdict = NonFiniteJudge()(result)
        if verdict.is_bad and final_loss(result) is not None:
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
        kept = self._trials.finished(setting)
        has_losses = bool(kept.result.losses) or kept.result.eval_loss is not None
        judge = NonFiniteJudge() if has_losses else ExitJudge()
        self._on_event(BisectEvent(what=what, verdict=judge(kept.result).text, is_new=kept.is_new))
