"""Rules for learning rates that are zero, too small, or too large for the weights they move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import mean, median, stdev

import numpy as np

from roundoff.diagnose.loop_calls import first_rank_with, loop_steps, rates
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Metrics, Run, Severity
from roundoff.words import plural

# == How far each step moved the weights, measured over all of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """One step that was measured."""

    step: int
    weights: float
    """Norm of all parameters after it."""
    update: float
    gradient: float

    @property
    def ratio(self) -> float:
        """The update against the weights."""
        return self.update / self.weights if self.weights else 0.0


def movements(run: Run, rank: int) -> list[Movement]:
    """Return the measured steps in order; parameters that are not finite leave theirs out."""
    table = run.parameters(rank=rank)
    if not table.num_rows:
        return []
    steps = table["step"].to_numpy()
    known, places = np.unique(steps, return_inverse=True)
    norms = {}
    for name in ("l2", "update_l2", "grad_l2"):
        values = np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64)
        squares = np.where(np.isnan(values), 0.0, values) ** 2
        norms[name] = np.sqrt(np.bincount(places, weights=squares))
    rows = np.stack(list(norms.values()))
    is_finite = np.isfinite(rows).all(axis=0)
    finite = zip(known[is_finite].tolist(), *rows[:, is_finite].tolist(), strict=True)
    return [Movement(step=step, weights=l2, update=update, gradient=grad) for step, l2, update, grad in finite]


_LEAST_ZERO = 3
_LATE_ZERO, _LATE_SHARE = 10, 0.2
"""A rate of 0 until the end counts from so many steps on, and so large a share of all."""
_TINY_RATIO, _TINY_TRAVEL = 1e-6, 1e-3
"""An update against the weights; all updates of a run against the weights."""
_LEAST_STEPS = 30
_NUM_COMPARED = 10
_LARGE_RATIO, _LEAST_LARGE = 0.4, 2
_WORSE, _NOT_BETTER, _MUCH_BETTER = 3.0, 0.8, 0.4
"""Losses against the first one: so bad was one of them in between, so bad are the last ones."""


def zero_rates(run: Run) -> list[Finding]:
    """Find learning rates that are exactly 0 beyond the first step of a warm-up and the last of a decay."""
    return first_rank_with(run, _zero_of_rank)


def _zero_of_rank(run: Run, rank: int) -> list[Finding]:
    attempts = [(call.step, rates(call)) for loop_step in loop_steps(run, rank) for call in loop_step.named("step")]
    told = [(step, max(lr)) for step, lr in attempts if lr]
    moved = {one.step for one in movements(run, rank) if one.update > 0}
    leading = [step for step, _ in takewhile(lambda attempt: attempt[1] == 0, told)]
    if len(leading) >= _LEAST_ZERO and not moved.intersection(leading):
        if len(leading) == len(told):
            until = f"in all of the {plural(len(told), 'step')} that were noted"
        else:
            until = f"up to step {leading[-1]}"
        return [_zero_finding(leading[1], f"{until}; a warm-up may begin at 0 for one step only", rank)]
    metrics = [metric for metric in run.metrics(rank=rank) if metric.lr is not None]
    trailing = [metric.step for metric in takewhile(lambda metric: metric.lr == 0, reversed(metrics))]
    if len(trailing) >= max(_LATE_ZERO, _LATE_SHARE * len(metrics)) and not moved.intersection(trailing):
        return [
            _zero_finding(trailing[-1], "from there to the end: the schedule is over, and the training is not", rank)
        ]
    return []


def _zero_finding(step: int, told: str, rank: int) -> Finding:
    return Finding(
        rule="lr-zero",
        severity=Severity.ERROR,
        confidence=0.97,
        step=step,
        rank=rank,
        phase="optimizer",
        title="the learning rate is 0",
        why=f"the learning rate of every group is exactly 0 in step {step} and {told}; these steps change no weight",
        fix="look at how the schedule computes its factor: an integer division (step // warmup) or too small a count "
        "of steps gives 0",
    )


def tiny_rates(run: Run) -> list[Finding]:
    """Find updates too small to matter, where gradients are there and the loss stays where it was."""
    return first_rank_with(run, _tiny_of_rank)


def _tiny_of_rank(run: Run, rank: int) -> list[Finding]:
    moved = [one for one in movements(run, rank) if one.update > 0 and one.weights > 0]
    metrics = run.metrics(rank=rank)
    losses = [metric.loss for metric in metrics if metric.loss is not None and math.isfinite(metric.loss)]
    known = [metric.lr for metric in metrics if metric.lr]
    if not moved or len(metrics) < _LEAST_STEPS or not known or known[-1] > known[0]:
        return []  # a rate that rises is a warm-up
    largest = max(one.ratio for one in moved)
    travel = median(one.ratio for one in moved) * len(metrics)
    is_still = largest < _TINY_RATIO and travel < _TINY_TRAVEL
    is_tiny = largest < _TINY_RATIO or travel < _TINY_TRAVEL
    if not is_tiny or not any(one.gradient > 0 for one in moved) or (_has_fallen(losses) and not is_still):
        return []
    gradient = median(one.gradient for one in moved)
    return [
        Finding(
            rule="lr-too-low",
            severity=Severity.ERROR,
            confidence=0.9 if largest < _TINY_RATIO else 0.8,
            step=moved[0].step,
            rank=rank,
            phase="optimizer",
            title="the learning rate is too low to train",
            why=f"an update is {format_short(largest)} of the weights at most (learning rate "
            f"{format_short(max(known))}), so "
            f"{plural(len(metrics), 'step')} move them by {format_short(travel)} of their size; the gradients are "
            "there, "
            f"with a norm of {format_short(gradient)}, and the loss stays where it is",
            fix="raise the learning rate: updates of about a thousandth of the weights are usual",
            evidence=({"largest_ratio": largest, "travel": travel, "gradient": gradient},),
        )
    ]


def _has_fallen(losses: Sequence[float]) -> bool:
    """Say whether the last third of the losses is lower than the first by more than their noise."""
    size = len(losses) // 3
    if size < _NUM_COMPARED:
        return False
    first, last = losses[:size], losses[-size:]
    error = 3 * (stdev(first) + stdev(last)) / math.sqrt(size)
    return mean(last) < mean(first) - max(error, 0.02 * abs(mean(first)))


def large_rates(run: Run) -> list[Finding]:
    """Find updates as large as the weights themselves, after which the loss is worse, or never gets better."""
    return first_rank_with(run, _large_of_rank)


def _large_of_rank(run: Run, rank: int) -> list[Finding]:
    moved = movements(run, rank)
    large = [one for one in moved if one.ratio >= _LARGE_RATIO]
    if len(large) < _LEAST_LARGE:
        return []  # a single one may be the gradient of a single batch
    first = large[0]
    harm = _harm(run.metrics(rank=rank), first)
    if harm is None:
        return []
    growth = moved[-1].weights / max(moved[0].weights - moved[0].update, moved[0].weights / 2)
    lr = next((metric.lr for metric in run.metrics(rank=rank) if metric.step == first.step), None)
    return [
        Finding(
            rule="lr-too-high",
            severity=Severity.ERROR,
            confidence=0.85,
            step=first.step,
            rank=rank,
            phase="optimizer",
            title="the learning rate is too high",
            why=f"the update of step {first.step} has {format_short(first.ratio)} times the norm of the weights "
            "it leaves"
            f"{'' if lr is None else f' (learning rate {format_short(lr)})'}, and {len(large)} of "
            f"{plural(len(moved), 'measured step')} are like it; by step {moved[-1].step} the weights have grown "
            f"{format_short(growth)}-fold; {harm}",
            fix="lower the learning rate ten- or a hundredfold; updates of about a thousandth of the weights are usual",
            evidence=({"ratio": first.ratio, "growth": growth, "steps": [one.step for one in large]},),
        )
    ]


def _harm(metrics: Sequence[Metrics], first: Movement) -> str | None:
    """Say what became of the loss after the first large update; None if nothing bad did."""
    before = [metric.loss for metric in metrics if metric.loss is not None and metric.step <= first.step]
    after = [metric.loss for metric in metrics if metric.loss is not None and metric.step > first.step]
    if not before or not after:
        return None
    start = before[0]
    if not all(map(math.isfinite, after)):
        return f"the loss, {format_short(start)} at first, ends up not finite"
    worst, end = max(after), median(after[-_NUM_COMPARED:])
    if worst > _WORSE * abs(start) and end > _MUCH_BETTER * abs(start):
        return (
            f"the loss rose from {format_short(start)} to {format_short(worst)}, and is {format_short(end)} at the end"
        )
    if len(after) >= _LEAST_STEPS and end > _NOT_BETTER * abs(start):
        return f"the loss, {format_short(start)} at first, is {format_short(end)} at the end"
    return None
