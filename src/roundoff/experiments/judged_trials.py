"""Trials of sets of sites, judged: what a search asks, and what it tells while it goes on."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from roundoff.errors import BisectError
from roundoff.experiments.bisect_changes import Change
from roundoff.experiments.bisect_options import BisectEvent, OnEvent
from roundoff.experiments.bisection import Progress
from roundoff.experiments.judgements import Budget, OutOfBudget
from roundoff.experiments.judges import ExitJudge, Judge, RuleJudge, Verdict
from roundoff.experiments.trials import Trials, log_of

_FIRST_SEED = 1000


def other_seeds(number: int) -> list[int | None]:
    """Return the training's own seed, and others, far from those that people choose."""
    return [None, *range(_FIRST_SEED, _FIRST_SEED + number - 1)]


class JudgedTrials:
    """Says whether a training is good if some of the sites are changed, as long as the budget lasts."""

    def __init__(
        self,
        trials: Trials,
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
        seed = other_seeds(nth + 1)[nth]
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
                why=f"the bad run does not, so that this is no answer{log_of(result.folder)}",
                fix="see that it runs by itself, or let the exit status be the answer: --judge exit",
            )
        return self.judge(result)

    def tell(self, progress: Progress) -> None:
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
                what=f"{_count(len(chosen))} {self._change.noun}",
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


def _count(number: int) -> str:
    return "1 site" if number == 1 else f"{number} sites"
