"""Learning rates that are zero, too low, or too high."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import mean, median, stdev

import numpy as np

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import loop_steps, rates
from roundoff.diagnose.rule import Code, FaultEffect, error, on_first_rank, rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Metrics, Run, StepDetail
from roundoff.words import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """How far one measured step moved the weights, over all parameters."""

    step: int
    weights: float
    """Norm of all parameters after the step."""
    update: float
    gradient: float

    @property
    def ratio(self) -> float:
        """The norm of the update divided by that of the weights."""
        return self.update / self.weights if self.weights else 0.0


def movements(run: Run, rank: int) -> list[Movement]:
    """Return the measured steps in order, without those that are not finite."""
    table = run.parameters(rank=rank)
    if not table.num_rows:
        return []
    steps = table.numbers("step")
    known, places = np.unique(steps, return_inverse=True)
    norms = {}
    for name in ("l2", "update_l2", "grad_l2"):
        values = table.numbers(name)
        if name != "l2":
            values = np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)  # without a gradient
        norms[name] = np.sqrt(np.bincount(places, weights=values**2))
    rows = np.stack(list(norms.values()))
    is_finite = np.isfinite(rows).all(axis=0) & (norms["l2"] > 0)  # the norm of weights that are all NaN is 0
    finite = zip(known[is_finite].tolist(), *rows[:, is_finite].tolist(), strict=True)
    return [Movement(step=step, weights=l2, update=update, gradient=grad) for step, l2, update, grad in finite]


_MIN_ZERO = 3
_LATE_ZERO, _LATE_SHARE = 10, 0.2
"""A rate of 0 until the end counts if it lasts this many steps, and this share of all steps."""
_TINY_RATIO, _TINY_TRAVEL = 1e-6, 1e-3
"""One update, and all updates of a run, relative to the weights."""
_MIN_STEPS = 30
_NUM_COMPARED = 10
_LARGE_RATIO, _MIN_LARGE = 0.4, 2
_WHOLE_RATIO = 0.8
_MANY_ORDINARY = 20
"""A single update of this size has replaced the weights."""
_MANY_TIMES_OVER, _GROWN = 2.0, 1.5
"""What the first updates come to together, and how much the weights have grown after them, relative to the start."""
_WORSE, _NOT_BETTER, _MUCH_BETTER = 3.0, 0.8, 0.4
"""Losses relative to the first: the worst in between, and the last ones."""


@rule(
    Code(
        name="lr-zero",
        means="The learning rate is exactly 0 in steps that should train.",
        fix="Check how the schedule computes its factor: an integer division gives 0 until the end of a warm-up.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=620,
    checks="learning rates of 0",
    needs=[needs.optimizer_steps],
)
@on_first_rank
def zero_rates(run: Run, rank: int) -> Finding | None:
    """Find learning rates that are exactly 0 beyond the first step of a warm-up and the last of a decay."""
    attempts = [(call.step, rates(call)) for loop_step in loop_steps(run, rank) for call in loop_step.calls_of("step")]
    rated = [(step, max(lr)) for step, lr in attempts if lr]
    moved = {one.step for one in movements(run, rank) if one.update > 0}
    leading = [step for step, _ in takewhile(lambda attempt: attempt[1] == 0, rated)]
    if len(leading) >= _MIN_ZERO and not moved.intersection(leading):
        if len(leading) == len(rated):
            until = f"in all {plural(len(rated), 'recorded step')}"
        else:
            until = f"up to step {leading[-1]}"
        return _zero_finding(leading[1], f"{until}; a warm-up may start at 0, but only for one step", rank, leading)
    metrics = [metric for metric in run.metrics(rank=rank) if metric.lr is not None]
    trailing = [metric.step for metric in takewhile(lambda metric: metric.lr == 0, reversed(metrics))]
    # The line of a step has the rate after it, which its schedule may just have set to 0.
    if len(trailing) >= max(_LATE_ZERO, _LATE_SHARE * len(metrics)) and not moved.intersection(trailing[:-1]):
        return _zero_finding(
            trailing[-1], "from there to the end: the schedule ended before the training", rank, trailing
        )
    return None


def _zero_finding(step: int, when: str, rank: int, steps: Sequence[int]) -> Finding:
    return error(
        rule="lr-zero",
        confidence=0.97,
        step=step,
        rank=rank,
        phase="optimizer",
        title="the learning rate is 0",
        why=f"the learning rate of every group is exactly 0 in step {step} and {when}; these steps change no weight",
        fix="check how the schedule computes its factor: an integer division (step // warmup) or a total number of "
        "steps that is too small gives 0",
        evidence=({"lr": 0.0, "steps": sorted(steps)[:20], "num_steps": len(steps)},),
    )


@rule(
    Code(
        name="lr-too-low",
        means="There are gradients, but the updates are so small that the loss stays where it is.",
        fix="Raise the learning rate; updates of about a thousandth of the weights are usual.",
        follows_from=(FaultEffect.STOPS_LEARNING, "lr-too-high"),
    ),
    order=1210,
    checks="updates too small to matter",
    needs=[needs.measured_parameters, needs.losses(_MIN_STEPS)],
)
@on_first_rank
def tiny_rates(run: Run, rank: int) -> Finding | None:
    """Find updates too small to matter, although there are gradients and the loss does not fall."""
    moved = [one for one in movements(run, rank) if one.update > 0 and one.weights > 0]
    metrics = run.metrics(rank=rank)
    losses = [metric.loss for metric in metrics if metric.loss is not None and math.isfinite(metric.loss)]
    known = [metric.lr for metric in metrics if metric.lr]
    if not moved or len(metrics) < _MIN_STEPS or not known or known[-1] > known[0]:
        return None  # a rising learning rate is a warm-up
    largest = max(one.ratio for one in moved)
    travel = median(one.ratio for one in moved) * len(metrics)
    is_still = largest < _TINY_RATIO and travel < _TINY_TRAVEL
    is_tiny = largest < _TINY_RATIO or travel < _TINY_TRAVEL
    if not is_tiny or not any(one.gradient > 0 for one in moved) or (_has_fallen(losses) and not is_still):
        return None
    gradient = median(one.gradient for one in moved)
    return error(
        rule="lr-too-low",
        confidence=0.9 if largest < _TINY_RATIO else 0.8,
        step=moved[0].step,
        rank=rank,
        phase="optimizer",
        title="the learning rate is too low to train",
        why=f"the largest update is {format_short(largest)} of the weights (learning rate "
        f"{format_short(max(known))}), so {plural(len(metrics), 'step')} move them by {format_short(travel)} of "
        f"their size; the gradient norm is {format_short(gradient)}, but the loss does not fall",
        fix="raise the learning rate: updates of about a thousandth of the weights are usual",
        evidence=(
            {"largest_ratio": largest, "travel": travel, "gradient": gradient},
            {"lr": max(known), "num_observed": len(metrics)},
        ),
    )


def _has_fallen(losses: Sequence[float]) -> bool:
    """Say whether the last third of the losses is lower than the first by more than their noise."""
    size = len(losses) // 3
    if size < _NUM_COMPARED:
        return False
    first, last = losses[:size], losses[-size:]
    error = 3 * (stdev(first) + stdev(last)) / math.sqrt(size)
    return mean(last) < mean(first) - max(error, 0.02 * abs(mean(first)))


@rule(
    Code(
        name="lr-too-high",
        means="Updates are as large as the weights themselves, and the loss got worse or never better.",
        fix="Lower the learning rate 10 to 100 times; updates of about a thousandth of the weights are usual.",
        leads_to=(FaultEffect.BLOWS_UP,),
        follows_from=(FaultEffect.BLOWS_UP, "exploding-activations", "input-scale"),
    ),
    order=740,
    checks="updates as large as the weights",
    needs=[needs.measured_parameters],
)
@on_first_rank
def large_rates(run: Run, rank: int) -> Finding | None:
    """Find updates as large as the weights themselves, after which the loss gets worse, or never better.

    An optimizer without a learning rate, as one that calls another library, chooses the size of its steps itself.
    """
    moved = movements(run, rank)
    if _have_no_rate(run, rank):
        return None
    metrics = run.metrics(rank=rank)
    large = [one for one in moved if one.ratio >= _LARGE_RATIO]
    if len(large) < _MIN_LARGE and (found := _find_replaced(moved, metrics, rank)) is not None:
        return found
    if not large:
        return None
    first = large[0]
    harm = _describe_rise(metrics, first)
    if len(large) < _MIN_LARGE and (harm is None or first.ratio < _WHOLE_RATIO):
        return None  # a single one may come from a single batch
    if len(large) == 1 and moved.index(first) >= _MANY_ORDINARY:
        return None  # with this rate many updates were fine: it is that one step
    harm = harm or _describe_standstill(metrics, first)
    if harm is None:
        return None
    growth = moved[-1].weights / max(moved[0].weights - moved[0].update, moved[0].weights / 2)
    lr = next((metric.lr for metric in metrics if metric.step == first.step), None)
    return error(
        rule="lr-too-high",
        confidence=0.85,
        step=first.step,
        rank=rank,
        phase="optimizer",
        title="the learning rate is too high",
        why=f"the norm of the update in step {first.step} is {format_short(first.ratio)} times that of the weights "
        f"after it{'' if lr is None else f' (learning rate {format_short(lr)})'}, like in {len(large)} of "
        f"{plural(len(moved), 'measured step')}; by step {moved[-1].step} the weights have grown "
        f"{format_short(growth)} times; {harm}",
        fix="lower the learning rate 10 to 100 times; updates of about a thousandth of the weights are usual",
        evidence=(
            {"ratio": first.ratio, "growth": growth, "steps": [one.step for one in large], "num_steps": len(large)},
            {"lr": lr, "num_observed": len(moved), "last_step": moved[-1].step},
        ),
    )


def _find_replaced(moved: Sequence[Movement], metrics: Sequence[Metrics], rank: int) -> Finding | None:
    """Find weights that the first steps replaced several times over, and a loss that never fell after that."""
    first_ones = moved[:_MANY_ORDINARY]
    if not first_ones or first_ones[0].step or first_ones[-1].step >= 2 * _MANY_ORDINARY:
        return None
    start = max(first_ones[0].weights - first_ones[0].update, first_ones[0].weights / 2)
    travel, growth = sum(one.update for one in first_ones) / start, first_ones[-1].weights / start
    harm = _describe_standstill(metrics, first_ones[0])
    if travel < _MANY_TIMES_OVER or growth < _GROWN or harm is None:
        return None
    lr = metrics[0].lr
    return error(
        rule="lr-too-high",
        confidence=0.8,
        step=first_ones[0].step,
        rank=rank,
        phase="optimizer",
        title="the learning rate is too high",
        why=f"the updates of the first {plural(len(first_ones), 'step')} together are {format_short(travel)} times as "
        f"large as the weights at the start{'' if lr is None else f' (learning rate {format_short(lr)})'}, and the "
        f"weights have grown {format_short(growth)} times: nothing is left of what they were; {harm}",
        fix="lower the learning rate 10 to 100 times; updates of about a thousandth of the weights are usual",
        evidence=({"travel": travel, "growth": growth},),
    )


def _have_no_rate(run: Run, rank: int) -> bool:
    """Say whether the optimizers of a run step, and none of them has a learning rate."""
    steps = [call.detail_as(StepDetail) for call in run.calls(rank=rank) if call.call == "step"]
    return bool(steps) and not any(step.lr or step.skipped for step in steps)


def _losses_around(metrics: Sequence[Metrics], first: Movement) -> tuple[float, list[float]] | None:
    """Return the first loss, and those after the first large update; None without them."""
    before = [metric.loss for metric in metrics if metric.loss is not None and metric.step <= first.step]
    after = [metric.loss for metric in metrics if metric.loss is not None and metric.step > first.step]
    return (before[0], after) if before and after else None


def _describe_rise(metrics: Sequence[Metrics], first: Movement) -> str | None:
    """Return how the loss rose after the first large update; None if it did not, or fell again."""
    losses = _losses_around(metrics, first)
    if losses is None:
        return None
    start, after = losses
    if not all(map(math.isfinite, after)):
        return f"the loss started at {format_short(start)} and ends up not finite"
    worst, end = max(after), median(after[-_NUM_COMPARED:])
    if worst > _WORSE * abs(start) and end > _MUCH_BETTER * abs(start):
        return f"the loss rose from {format_short(start)} to {format_short(worst)} and ended at {format_short(end)}"
    return None


def _describe_standstill(metrics: Sequence[Metrics], first: Movement) -> str | None:
    """Return where the loss still was after many steps; None if it fell."""
    losses = _losses_around(metrics, first)
    if losses is None or len(losses[1]) < _MIN_STEPS:
        return None
    start, end = losses[0], median(losses[1][-_NUM_COMPARED:])
    if end <= _NOT_BETTER * abs(start):
        return None
    return f"the loss started at {format_short(start)} and ended at {format_short(end)}"
