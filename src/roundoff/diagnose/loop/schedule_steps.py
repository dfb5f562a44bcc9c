"""Rules for learning rate schedules that are stepped at the wrong time."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose.loop_calls import LoopStep, first_rank_with, loop_steps
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Run, Severity
from roundoff.words import plural

SCHEDULE_CODES = ("scheduler-before-step", "scheduler-rate")
_OFTEN = 0.5
"""Calls for each step of an optimizer, from which on a schedule counts as stepped with every batch."""
_SMALL, _SMALL_SHARE, _LEAST_SMALL = 1e-3, 0.3, 20
"""A rate below this part of its peak, for so large a share of the steps, and so many."""
_FALL, _FALL_SHARE = 10.0, 0.05
"""So deep a fall within this share of an epoch."""
_LEAST_CYCLES = 3


def misplaced_schedules(run: Run) -> list[Finding]:
    """Find schedules that begin before the optimizer, and schedules of epochs that are stepped with every batch."""
    return first_rank_with(run, lambda run, rank: [*_before_step(run, rank), *_too_fast(run, rank)])


def _before_step(run: Run, rank: int) -> list[Finding]:
    for loop_step in loop_steps(run, rank):
        for call in loop_step.calls:
            if call.call in ("step", "load"):
                return []  # a resumed training winds its schedule forward
            if call.call == "scheduler" and not call.detail.get("initial"):
                return [
                    Finding(
                        rule="scheduler-before-step",
                        severity=Severity.ERROR,
                        confidence=0.95,
                        step=call.step,
                        rank=rank,
                        phase="optimizer",
                        title="the scheduler steps before the optimizer",
                        why=f"{call.detail.get('scheduler')}.step() was called before the first optimizer.step(): the "
                        "first learning rate of the schedule is never used, and all others come a step early",
                        fix="call scheduler.step() after optimizer.step()",
                        evidence=({"lr": call.detail.get("lr")},),
                    )
                ]
    return []


def _too_fast(run: Run, rank: int) -> list[Finding]:
    steps = loop_steps(run, rank)
    num_attempts = sum(len(loop_step.named("step")) for loop_step in steps)
    scheduled = [call for step in steps for call in step.named("scheduler") if not call.detail.get("initial")]
    if not scheduled or len(scheduled) < _OFTEN * num_attempts:
        return []
    rates = [(metric.step, metric.lr) for metric in run.metrics(rank=rank) if metric.lr is not None]
    if not rates:
        return []
    peak = max(lr for _, lr in rates)
    after = rates[[lr for _, lr in rates].index(peak) :]
    batches = _num_batches(steps)
    name = str(scheduled[0].detail.get("scheduler"))
    told = _how_it_fell(after, peak, batches) or _how_it_cycles([lr for _, lr in after], peak, name)
    if told is None:
        return []
    fell = next((step for step, lr in after if lr <= _fallen(peak)), after[-1][0])
    epoch = f", and an epoch has {plural(batches, 'batch', 'batches')}" if batches else ""
    return [
        Finding(
            rule="scheduler-rate",
            severity=Severity.ERROR,
            confidence=0.9,
            step=fell,
            rank=rank,
            phase="optimizer",
            title="the schedule runs much faster than the training",
            why=f"{name} was stepped {plural(len(scheduled), 'time')} in the {plural(num_attempts, 'step')} that were "
            f"noted{epoch}: {told}",
            fix="call scheduler.step() once per epoch, after its last batch, or give the schedule its length in steps",
            evidence=({"peak": peak, "last": rates[-1][1], "num_batches": batches},),
        )
    ]


def _how_it_fell(after: Sequence[tuple[int, float]], peak: float, batches: int | None) -> str | None:
    """Say how fast the rate fell for good; None if it did not. A rate of exactly 0 is another rule's."""
    small = [step for step, lr in after if 0 < lr < _SMALL * peak]
    last = after[-1][1]
    if not small or not 0 < last < _SMALL * peak:
        return None
    fell = next(step for step, lr in after if lr <= _fallen(peak)) - after[0][0]
    is_steep = batches is not None and fell <= _FALL_SHARE * batches
    if not is_steep and (len(small) < _LEAST_SMALL or len(small) < _SMALL_SHARE * len(after)):
        return None
    return (
        f"the learning rate fell tenfold within {plural(max(fell, 1), 'step')}, from {format_short(peak)} to "
        f"{format_short(last)} at "
        f"the end, and was below a thousandth of its peak for {len(small)} of {plural(len(after), 'step')}"
    )


def _fallen(peak: float) -> float:
    """Return what counts as a fall, rounding of the scheduler's products included."""
    return peak / _FALL * (1 + 1e-6)


def _how_it_cycles(rates: Sequence[float], peak: float, name: str) -> str | None:
    """Say how often a cosine that should come down once came down; None if it is no such one."""
    if name != "CosineAnnealingLR":
        return None
    num_low = sum(
        now < before and now <= then and now < peak / _FALL
        for before, now, then in zip(rates, rates[1:], rates[2:], strict=False)
    )
    if num_low < _LEAST_CYCLES:
        return None
    return f"the learning rate came down and rose again {num_low} times, where a cosine comes down once"


def _num_batches(steps: Sequence[LoopStep]) -> int | None:
    """Return how many batches an epoch of the training's loader has: that of the first pass."""
    sizes = [call.detail.get("num_batches") for step in steps for call in step.named("epoch")]
    return next((size for size in sizes if isinstance(size, int)), None)
