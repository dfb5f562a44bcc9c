"""Trials of sets of sites, judged: what a search asks, and what it tells while it goes on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from roundoff.errors import BisectError
from roundoff.experiments.bisect_changes import Change
from roundoff.experiments.bisect_options import BisectEvent, OnEvent
from roundoff.experiments.bisection import Progress
from roundoff.experiments.judges import ExitJudge, Judge, RuleJudge, Verdict
from roundoff.experiments.trials import Trials, log_of

_FIRST_SEED = 1000


def other_seeds(number: int) -> list[int | None]:
    """Return the training's own seed, and others, far from those that people choose."""
    return [None, *range(_FIRST_SEED, _FIRST_SEED + number - 1)]


class JudgedTrials:
    """Says whether a training is good if some of the sites are changed."""

    def __init__(
        self, trials: Trials, change: Change, judge: Judge, *, bad_fails: bool, max_runs: int | None, on_event: OnEvent
    ) -> None:
        self._trials, self._change, self._judge, self._on_event = trials, change, judge, on_event
        self._bad_fails, self._max_runs = bad_fails, max_runs
        self._times_asked: Counter[frozenset[str]] = Counter()
        self._last: tuple[frozenset[str], Verdict] | None = None
        self._num_before = trials.num_asked
        self._num_at_begin = 0
        self._num_told = 0
        self._all: tuple[str, ...] = ()

    @property
    def num_runs(self) -> int:
        """How many trials the search has taken, those before it not counted."""
        return self._trials.num_asked - self._num_before

    def search_among(self, sites: Sequence[str]) -> None:
        """Begin a search: progress is told in terms of these sites, and seeds begin anew."""
        self._all = tuple(sites)
        self._num_at_begin = self.num_runs
        self._times_asked.clear()

    def is_good_with(self, chosen: frozenset[str]) -> bool:
        """Try the training with exactly these sites changed; asked again, with another seed."""
        nth = self._times_asked[chosen]
        self._times_asked[chosen] += 1
        verdict = self.verdict(chosen, seed=other_seeds(nth + 1)[nth])
        self._last = (chosen, verdict)
        return not verdict.is_bad

    def is_bad_without(self, chosen: frozenset[str]) -> bool:
        """Try the training with all sites changed but these."""
        return not self.is_good_with(frozenset(self._all) - chosen)

    def verdict(self, chosen: Iterable[str], *, seed: int | None = None) -> Verdict:
        """Return what the judge says of the training with these sites changed.

        Raises:
            BisectError: it broke down, which the bad run does not: that is no answer.
        """
        result = self._trials(self._change.setting(chosen, seed=seed))
        if result.exit_code and not self._bad_fails and not isinstance(self._judge, ExitJudge | RuleJudge):
            raise BisectError.explain(
                f"A trial of `{self._trials.subject.name}` ended with exit code {result.exit_code}.",
                why=f"the bad run does not, so that this is no answer{log_of(result.folder)}",
                fix="see that it runs by itself, or let the exit status be the answer: --judge exit",
            )
        return self._judge(result)

    def tell(self, progress: Progress) -> None:
        """Tell of the run that has just ended, unless it was made before for another question."""
        assert self._last is not None
        chosen, verdict = self._last
        if self.num_runs == self._num_told:
            return
        self._num_told = self.num_runs
        goodness = "bad" if verdict.is_bad else "good"
        at_most = self._max_runs or self._num_at_begin + math.ceil(math.log2(max(len(self._all), 2))) + 3
        is_over = self._max_runs is None and self.num_runs > at_most  # there is more than one culprit
        self._on_event(
            BisectEvent(
                what=f"{_count(len(chosen))} {self._change.noun}",
                verdict=f"{goodness}, {verdict.text}",
                num_runs=self.num_runs,
                at_most=None if is_over else at_most,
                known=progress.smallest or (),
                seconds_left=None if is_over else (at_most - self.num_runs) * self._trials.seconds_each,
                is_new=self._trials.kept(self._change.setting(chosen)).is_new,
            )
        )


def _count(number: int) -> str:
    return "1 site" if number == 1 else f"{number} sites"
