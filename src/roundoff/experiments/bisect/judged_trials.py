"""Trials of sets of sites, judged: what a search asks, and what it tells while it goes on."""

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
    """Return the training's own seed, and others, far from those that people choose."""
    return [None, *range(_FIRST_SEED, _FIRST_SEED + number - 1)]


class JudgedTrials:
    """Says whether a training is good if some of the sites are changed, as long as the budget lasts."""

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
        """How many trials the search has taken, those beside it not counted."""
        self._trials, self._change, self._on_event = trials, change, on_event
        self._bad_fails, self._budget, self._began = bad_fails, budget, began
        self._times_asked: Counter[frozenset[str]] = Counter()
        self._last: tuple[frozenset[str], int | None, Verdict] | None = None
        self._num_at_begin = 0
        self._num_told = 0
        self._all: tuple[str, ...] = ()

    def search_among(self, sites: Sequence[str]) -> None:
        """Begin a search: progress is told in terms of these sites, and seeds begin anew."""
        self._all = tuple(sites)
        self._num_at_begin = self.num_runs
        self._times_asked.clear()

    def is_good_with(self, chosen: frozenset[str]) -> bool:
        """Try the training with exactly these sites changed; asked again, with another seed."""
        nth = self._times_asked[chosen]
        self._times_asked[chosen] += 1
        seed = trial_seeds(nth + 1)[nth]
        verdict = self.verdict(chosen, seed=seed)
        self._last = (chosen, seed, verdict)
        return not verdict.is_bad

    def is_bad_without(self, chosen: frozenset[str]) -> bool:
        """Try the training with all sites changed but these."""
        return not self.is_good_with(frozenset(self._all) - chosen)

    def verdict(self, chosen: Iterable[str], *, seed: int | None = None) -> Verdict:
        """Return what the judge says of the training with these sites changed.

        Raises:
            BisectError: it broke down, which the bad run does not: that is no answer.
            OutOfBudget: it would take one run too many.
        """
        setting = self._change.setting(chosen, seed=seed)
        if not self._trials.was_asked(setting):
            self._check_budget()
            self.num_runs += 1
        result = self._trials(setting)
        if result.exit_code and not self._bad_fails and not isinstance(self.judge, ExitJudge | RuleJudge):
            raise BisectError.explain(
                f"A trial of `{self._trials.subject.name}` ended with exit code {result.exit_code}.",
                why=f"the bad run does not, so that this is no answer{quote_log(result.folder)}",
                fix="see that it runs by itself, or let the exit status be the answer: --judge exit",
            )
        return self.judge(result)

    def tell(self, progress: SearchProgress) -> None:
        """Tell of the run that has just ended, unless it was made before for another question."""
        assert self._last is not None
        chosen, seed, verdict = self._last
        if self.num_runs == self._num_told:
            return
        self._num_told = self.num_runs
        goodness = "bad" if verdict.is_bad else "good"
        at_most, is_new = self._at_most(), self._trials.kept(self._change.setting(chosen, seed=seed)).is_new
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
        """Return how many runs it takes if there is one culprit, or may take; None if that is not known."""
        one_culprit = self._num_at_begin + math.ceil(math.log2(max(len(self._all), 2))) + 3
        allowed = self._budget.max_runs
        if self.num_runs > one_culprit:  # there is more than one culprit
            return allowed
        return one_culprit if allowed is None else min(allowed, one_culprit)

    def _check_budget(self) -> None:
        seconds = time.monotonic() - self._began
        if limit := self._budget.exceeded(num_runs=self.num_runs, seconds=seconds):
            raise OutOfBudget(limit)


# == The runs beside a search: the training as it is, with every site changed, and the reference under several
# == seeds.


class BaselineRuns:
    """Makes these runs, each once, tells of each, and raises where there is no search to be made."""

    def __init__(self, trials: TrialRunner, change: Change, options: BisectOptions, *, on_event: OnEvent) -> None:
        self.notes: list[str] = []
        """What a reader of the answer has to know about them."""
        self._trials, self._change, self._options, self._on_event = trials, change, options, on_event

    def as_it_is(self) -> TrialResult:
        """Return what the training comes to if nothing is changed."""
        return self._tried("as it is", self._change.setting(()))

    def all_changed(self, sites: Sequence[str]) -> TrialResult:
        """Return what the training comes to if every site is changed."""
        return self._tried(f"all {len(sites)} sites {self._change.noun}", self._change.setting(sites))

    def references(self) -> list[TrialResult]:
        """Train the reference under several seeds.

        Raises:
            BisectError: it fails itself.
        """
        name, seeds = self._change.reference_name, trial_seeds(self._options.seeds)
        settings = [self._change.reference(seed=seed) for seed in seeds]
        are_new = [not self._trials.was_asked(setting) for setting in settings]
        results = self._trials.all(settings)
        for seed, setting, is_new in zip(seeds, settings, are_new, strict=True):
            if is_new:
                self._tell(f"{name}{'' if seed is None else f', seed {seed}'}", setting)
        for result in results:
            self._check_reference(result)
        note = "the noise of the reference is not known (its runs are all alike): 1 % is allowed."
        if len({each.losses for each in results}) == 1 and note not in self.notes:
            self.notes.append(note)
        return results

    def check_reference(self) -> None:
        """Train the reference once; raise if it fails itself: then no format is to blame."""
        self._check_reference(self._tried(self._change.reference_name, self._change.reference()))

    def check_good(self, judge: Judge, good: TrialResult) -> None:
        """Raise if changing every site does not help, and say what is known of why."""
        subject, name = self._trials.subject.name, self._change.reference_name
        verdict = judge(good)
        if not verdict.is_bad:
            return
        if good.exit_code:
            raise BisectError.explain(
                f"`{subject}` fails with every site {self._change.noun}: exit code {good.exit_code}.",
                why=f"a search needs a run that is good{quote_log(good.folder)}",
                fix="see that it runs by itself.",
            )
        reference = judge(self._tried(name, self._change.reference()))
        words = subject.removeprefix("roundoff ")
        raise BisectError.explain(
            f"`{subject}` is bad even with every site {self._change.noun}: {verdict.text}.",
            why=f"with {name} it is bad, too: {reference.text}."
            if reference.is_bad
            else f"with {name} it is good ({reference.text}).\n"
            "       What spoils it is not in the sites that were searched, but in the loss scale, in the format\n"
            "       of the model's inputs, in how weights are updated, or elsewhere.",
            fix="look for what else is wrong: roundoff run, roundoff diagnose"
            if reference.is_bad
            else f"let a recipe be planned, with a loss scale where it takes one: roundoff plan {words}",
        )

    def _check_reference(self, result: TrialResult) -> None:
        verdict = NonFiniteJudge()(result)
        if verdict.is_bad and final_loss(result) is not None:
            good = self._change.good_name
            raise BisectError.explain(
                f"`{self._trials.subject.name}` fails in {good}, too.",
                why=f"with {self._change.reference_name}: {verdict.text}{quote_log(result.folder)}",
                fix=f"find out why first, it is not the format: roundoff run with {self._change.reference_name}",
            )

    def _tried(self, what: str, setting: TrialSetting) -> TrialResult:
        is_first_time = not self._trials.was_asked(setting)
        result = self._trials(setting)
        if is_first_time:
            self._tell(what, setting)
        return result

    def _tell(self, what: str, setting: TrialSetting) -> None:
        kept = self._trials.kept(setting)
        has_losses = bool(kept.result.losses) or kept.result.eval_loss is not None
        judge = NonFiniteJudge() if has_losses else ExitJudge()
        self._on_event(BisectEvent(what=what, verdict=judge(kept.result).text, is_new=kept.is_new))
