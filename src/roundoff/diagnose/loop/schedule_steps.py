"""Learning rate schedules that are stepped too early or too often."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.loop_calls import LoopStep, first_rank_with, loop_steps
from roundoff.diagnose.rule import Code, Effect, Rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import EpochDetail, Finding, Run, SchedulerDetail, Severity
from roundoff.words import plural

_OFTEN = 0.5
"""Calls per optimizer step from which on a schedule counts as stepped with every batch."""
_SMALL, _SMALL_SHARE, _MIN_SMALL = 1e-3, 0.3, 20
"""A learning rate is small below this fraction of its peak, if it stays there for this share and number of steps."""
_FALL, _FALL_SHARE = 10.0, 0.05
"""A fall by this factor within this share of an epoch is too fast."""
_MIN_CYCLES = 3


def misplaced_schedules(run: Run) -> list[Finding]:
    """Find schedules that start before the optimizer, and epoch schedules that are stepped with every batch."""
    return first_rank_with(run, lambda run, rank: [*_find_early(run, rank), *_find_too_fast(run, rank)])


def _find_early(run: Run, rank: int) -> list[Finding]:
    for loop_step in loop_steps(run, rank):
        for call in loop_step.calls:
            if call.call in ("step", "load"):
                return []  # a resumed training fast-forwards its schedule
            if call.call == "scheduler" and not call.detail_as(SchedulerDetail).initial:
                return [
                    Finding(
                        rule="scheduler-before-step",
                        severity=Severity.ERROR,
                        confidence=0.95,
                        step=call.step,
                        rank=rank,
                        phase="optimizer",
                        title="the scheduler steps before the optimizer",
                        why=f"{call.detail_as(SchedulerDetail).scheduler}.step() was called before the first "
                        "optimizer.step(): the first learning rate of the schedule is never used, and all others "
                        "come one step early",
                        fix="call scheduler.step() after optimizer.step()",
                        evidence=({"lr": list(call.detail_as(SchedulerDetail).lr)},),
                    )
                ]
    return []


def _find_too_fast(run: Run, rank: int) -> list[Finding]:
    steps = loop_steps(run, rank)
    num_attempts = sum(len(loop_step.named("step")) for loop_step in steps)
    scheduled = [
        call for step in steps for call in step.named("scheduler") if not call.detail_as(SchedulerDetail).initial
    ]
    if not scheduled or len(scheduled) < _OFTEN * num_attempts:
        return []
    rates = [(metric.step, metric.lr) for metric in run.metrics(rank=rank) if metric.lr is not None]
    if not rates:
        return []
    peak = max(lr for _, lr in rates)
    after = rates[[lr for _, lr in rates].index(peak) :]
    batches = _num_batches(steps)
    name = str(scheduled[0].detail_as(SchedulerDetail).scheduler)
    course = _describe_fall(after, peak, batches) or _describe_cycles([lr for _, lr in after], peak, name)
    if course is None:
        return []
    fell = next((step for step, lr in after if lr <= _fall_limit(peak)), after[-1][0])
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
            why=f"{name} was stepped {plural(len(scheduled), 'time')} in "
            f"{plural(num_attempts, 'recorded step')}{epoch}: {course}",
            fix="call scheduler.step() once per epoch, after its last batch, or set the length of the schedule in "
            "steps",
            evidence=({"peak": peak, "last": rates[-1][1], "num_batches": batches},),
        )
    ]


def _describe_fall(after: Sequence[tuple[int, float]], peak: float, batches: int | None) -> str | None:
    """Return how fast the learning rate fell for good; None if it did not. Another rule finds a rate of exactly 0."""
    small = [step for step, lr in after if 0 < lr < _SMALL * peak]
    last = after[-1][1]
    if not small or not 0 < last < _SMALL * peak:
        return None
    fell = next(step for step, lr in after if lr <= _fall_limit(peak)) - after[0][0]
    is_steep = batches is not None and fell <= _FALL_SHARE * batches
    if not is_steep and (len(small) < _MIN_SMALL or len(small) < _SMALL_SHARE * len(after)):
        return None
    return (
        f"the learning rate fell to a tenth within {plural(max(fell, 1), 'step')}, from {format_short(peak)} to "
        f"{format_short(last)} at the end, and was below a thousandth of its peak for {len(small)} of "
        f"{plural(len(after), 'step')}"
    )


def _fall_limit(peak: float) -> float:
    """Return the learning rate that counts as a fall, with room for the scheduler's rounding."""
    return peak / _FALL * (1 + 1e-6)


def _describe_cycles(rates: Sequence[float], peak: float, name: str) -> str | None:
    """Return how often a cosine schedule, which should fall once, fell; None for other schedules."""
    if name != "CosineAnnealingLR":
        return None
    num_low = sum(
        now < before and now <= then and now < peak / _FALL
        for before, now, then in zip(rates, rates[1:], rates[2:], strict=False)
    )
    if num_low < _MIN_CYCLES:
        return None
    return f"the learning rate fell and rose again {num_low} times, while a cosine schedule should fall once"


def _num_batches(steps: Sequence[LoopStep]) -> int | None:
    """Return how many batches the first epoch of the training's DataLoader has."""
    sizes = [call.detail_as(EpochDetail).num_batches for step in steps for call in step.named("epoch")]
    return next((size for size in sizes if isinstance(size, int)), None)


RULES = (
    Rule(
        order=670,
        checks="when learning rate schedules are stepped",
        find=misplaced_schedules,
        needs=(needs.calls("scheduler", missing="no learning rate schedule was stepped"),),
        codes=(
            Code(
                name="scheduler-before-step",
                means="The schedule steps before the optimizer does, so its first learning rate is never used.",
                detected="The order of calls: the schedule was stepped before the first step of its optimizer.",
                fix="Call `scheduler.step()` after `optimizer.step()`.",
            ),
            Code(
                name="scheduler-rate",
                means="A schedule that counts epochs is stepped with every batch, so the learning rate falls to almost "
                "0 within a fraction of an epoch.",
                detected="The schedule is stepped with every batch, and the learning rate falls to a small fraction of "
                "its peak within a small fraction of an epoch.",
                fix="Step it once per epoch, or set its length in steps.",
                leads_to=(Effect.STOPS_LEARNING,),
            ),
        ),
    ),
)
