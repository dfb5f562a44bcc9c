"""Asks a judge about sets of sites: never twice without need, several times where it is noisy, within a budget."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from roundoff.experiments.judgement_file import Judgement

Limit = Literal["max_runs", "deadline_seconds"]


class OutOfBudget(Exception):
    """There is no budget left for the run that was asked for; it has not been started."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.limit: Limit = limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much a search may cost. A run that has begun is never cut short."""

    max_runs: int | None = None
    deadline_seconds: float | None = None

    def exceeded(self, *, num_runs: int, seconds: float) -> Limit | None:
        """Name the limit that forbids one more run, if any."""
        if self.max_runs is not None and num_runs >= self.max_runs:
            return "max_runs"
        if self.deadline_seconds is not None and seconds >= self.deadline_seconds:
            return "deadline_seconds"
        return None


@dataclass(slots=True, kw_only=True)
class Judgements:
    """What is known about sets of sites; called with one, it says whether the property holds, running what it must.

    Raises:
        OutOfBudget: it would take a run that the budget does not allow.
    """

    judge: Callable[[frozenset[str]], bool]
    repeats: int
    """How many runs judge one set at most: the majority decides, and no run is made that cannot change it."""
    budget: Budget
    on_run: Callable[[Judgement], None]
    """Is told of every run as soon as it has ended."""
    num_runs: int = 0
    num_cached: int = 0
    """Questions that were answered without any run."""
    _votes: dict[frozenset[str], Counter[bool]] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)

    def remember(self, judgements: Iterable[Judgement]) -> None:
        """Count runs that were made before."""
        for judgement in judgements:
            self._votes.setdefault(judgement.sites, Counter())[judgement.holds] += 1

    def __call__(self, sites: Sequence[str]) -> bool:
        """Say whether the property holds for these sites."""
        chosen = frozenset(sites)
        answer = self._decided(chosen)
        if answer is not None:
            self.num_cached += 1
            return answer
        while (answer := self._decided(chosen)) is None:
            self._run(chosen)
        return answer

    def smallest(self) -> frozenset[str] | None:
        """Return a smallest set for which the property is known to hold, or None."""
        return min((sites for sites in self._votes if self._decided(sites)), key=len, default=None)

    def _decided(self, sites: frozenset[str]) -> bool | None:
        votes = self._votes.get(sites, Counter())
        if votes[True] == votes[False] or max(votes.values()) <= self.repeats // 2:
            return None
        return votes[True] > votes[False]

    def _run(self, sites: frozenset[str]) -> None:
        seconds = time.monotonic() - self._started
        if limit := self.budget.exceeded(num_runs=self.num_runs, seconds=seconds):
            raise OutOfBudget(limit)
        judgement = Judgement(sites=sites, holds=bool(self.judge(sites)))
        self.num_runs += 1
        self.remember([judgement])
        self.on_run(judgement)
