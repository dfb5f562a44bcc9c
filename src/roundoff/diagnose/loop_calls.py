"""What the loop did, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from roundoff.runs import Call, Finding, Run, SchedulerDetail, StepDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStep:
    """The calls of one step, in order."""

    step: int
    calls: tuple[Call, ...]

    def named(self, name: str) -> list[Call]:
        """Return the calls of one kind."""
        return [call for call in self.calls if call.call == name]


def loop_steps(run: Run, rank: int) -> list[LoopStep]:
    """Return the steps whose calls were recorded: the first hundred, then those that differ from the one before."""
    return [
        LoopStep(step=step, calls=tuple(calls)) for step, calls in groupby(run.calls(rank=rank), lambda call: call.step)
    ]


def first_rank_with(run: Run, find: Callable[[Run, int], list[Finding]]) -> list[Finding]:
    """Return the findings of the first rank that has any: all ranks run the same loop."""
    return next((found for rank in run.ranks if (found := find(run, rank))), [])


def rates(call: Call) -> list[float]:
    """Return the learning rates that a step or scheduler call tells of."""
    rates = call.detail.lr if isinstance(call.detail, StepDetail | SchedulerDetail) else None
    return [rate for rate in rates or () if rate is not None]
