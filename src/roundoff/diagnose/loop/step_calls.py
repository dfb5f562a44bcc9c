"""Optimizers that step twice on one backward, or never, and schedules that are stepped too early or too often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import LoopStep, loop_steps, training_epochs
from roundoff.diagnose.rule import Code, FaultEffect, error, on_first_rank, rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import (
    Call,
    EpochDetail,
    Finding,
    Run,
    SchedulerDetail,
    Severity,
    StepDetail,
    Structure,
    ZeroGradDetail,
)
from roundoff.words import plural

_MIN_BACKWARDS = 10
"""Fewer may be the microbatches of a step that was not reached."""


@rule(
    Code(
        name="missing-step",
        means="Backward computes gradients, but the optimizer never steps: the weights never change.",
        fix="Call `optimizer.step()` after backward; if gradients are accumulated, check that the step is ever "
        "reached.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=660,
    checks="optimizers that never step",
    needs=[
        needs.structure,
        needs.optimizer,
        needs.some(
            lambda run: any(
                sum(call.call == "backward" for call in run.calls(rank=rank)) >= _MIN_BACKWARDS for rank in run.ranks
            ),
            f"fewer than {_MIN_BACKWARDS} backwards were recorded",
        ),
    ],
)
@on_first_rank
def missing_steps(run: Run, rank: int) -> Finding | None:
    """Find optimizers that never step, although backward computes gradients for their parameters."""
    calls = run.calls(rank=rank)
    made = Counter[str](call.call for call in calls)
    structures = run.structures(rank=rank)
    if made["backward"] < _MIN_BACKWARDS or not structures:
        return None
    stepped = {call.detail_as(StepDetail).optimizer for call in calls if call.call == "step"}
    idle = [name for name in _with_gradients(structures[-1]) if name not in stepped]
    if not idle or (not stepped and _weights_changed(run, rank)):
        return None
    cleared = {call.detail_as(ZeroGradDetail).of for call in calls if call.call == "zero_grad"}
    # An optimizer that the loop never touches while others step may be the one of a later phase.
    while_others_step = Severity.WARNING if cleared.intersection(idle) else Severity.NOTE
    several = "" if not stepped else f"; {', '.join(sorted(map(str, stepped)))} did"
    return Finding(
        rule="missing-step",
        severity=while_others_step if stepped else Severity.ERROR,
        confidence=0.8 if stepped else 0.97,
        step=0,
        rank=rank,
        phase="optimizer",
        title=f"{idle[0]} never steps",
        why=f"backward ran at least {plural(made['backward'], 'time')} and computed gradients for the parameters "
        f"of {', '.join(idle)}, but its step was never called{several}: these weights never change",
        fix="call optimizer.step() after backward"
        + ("" if made["zero_grad"] else "; if gradients are accumulated, check that the step is ever reached"),
        evidence=({"calls": {**made}},),
    )


def _with_gradients(structure: Structure) -> list[str]:
    """Return the optimizers that hold parameters which backward reaches and no other optimizer holds."""
    reached = [parameter.optimizers for parameter in structure.parameters if parameter.is_reached]
    return [entry.name for entry in structure.optimizers if (entry.name,) in reached]


def _weights_changed(run: Run, rank: int) -> bool:
    """Say whether other code changed the weights between steps 0 and 1."""
    first, second = (
        {(event.parameter, event.output): event.hash for event in run.iter_events(step=step, rank=rank, op="parameter")}
        for step in (0, 1)
    )
    return any(second.get(key, known) != known for key, known in first.items())


@rule(
    Code(
        name="double-step",
        means="The optimizer steps twice on the same gradients. The loss may even look better for a while, because "
        "this effectively doubles the learning rate.",
        fix="Remove one of the two calls; with a GradScaler, call only `scaler.step(optimizer)`.",
        leads_to=(FaultEffect.BLOWS_UP,),
    ),
    order=650,
    checks="two optimizer steps on one backward",
    needs=[needs.optimizer_steps],
)
@on_first_rank
def double_steps(run: Run, rank: int) -> Finding | None:
    """Find an optimizer that stepped again without a backward or zero_grad in between."""
    pairs = _second_steps(run, rank)
    if not pairs:
        return None
    first, second = pairs[0]
    ways = ["by the scaler" if call.detail_as(StepDetail).by_scaler else "directly" for call in (first, second)]
    callers = f" ({ways[0]} and {ways[1]})" if ways[0] != ways[1] else ""
    return error(
        rule="double-step",
        confidence=0.97,
        step=second.step,
        rank=rank,
        phase="optimizer",
        title="the optimizer steps twice on the same gradients",
        why=f"{second.detail_as(StepDetail).optimizer} stepped twice after one backward{callers}, without new "
        f"gradients in between; this happened {plural(len(pairs), 'time')}, first in step {second.step}",
        fix="remove one of the two calls; with a GradScaler, call only scaler.step(optimizer)",
        evidence=({"steps": [second.step for _, second in pairs[:20]], "num_steps": len(pairs), "called": [*ways]},),
    )


def _second_steps(run: Run, rank: int) -> list[tuple[Call, Call]]:
    """Return each pair of steps of one optimizer on one backward.

    Gradients may come from elsewhere than backward: only an optimizer that had a backward before its first step counts.
    """
    pairs: list[tuple[Call, Call]] = []
    last: dict[object, Call] = {}  # the last step of each optimizer that had a backward and nothing since
    has_backward = False
    step_before = -1
    for loop_step in loop_steps(run, rank):
        if loop_step.step > step_before + 1:
            last.clear()  # what happened in between was not recorded
        step_before = loop_step.step
        for call in loop_step.calls:
            if call.call in ("backward", "zero_grad", "load"):
                last.clear()
                has_backward = call.call == "backward" or (has_backward and call.call == "load")
            elif call.call == "step":
                name = call.detail_as(StepDetail).optimizer
                if name in last:
                    pairs.append((last[name], call))
                elif has_backward:
                    last[name] = call
    return pairs


_OFTEN = 0.5
"""Calls per optimizer step from which on a schedule counts as stepped with every batch."""
_SMALL, _SMALL_SHARE, _MIN_SMALL = 1e-3, 0.3, 20
"""A learning rate is small below this fraction of its peak, if it stays there for this share and number of steps."""
_FALL, _FALL_SHARE = 10.0, 0.05
"""A fall by this factor within this share of an epoch is too fast."""
_MIN_CYCLES = 3


@rule(
    Code(
        name="scheduler-before-step",
        means="The schedule steps before the optimizer does, so its first learning rate is never used.",
        detected="The order of calls: the schedule was stepped before the first step of its optimizer.",
        fix="Call `scheduler.step()` after `optimizer.step()`.",
    ),
    Code(
        name="scheduler-rate",
        means="A schedule that counts epochs is stepped with every batch, so the learning rate falls to almost 0 "
        "within a fraction of an epoch.",
        detected="The schedule is stepped with every batch, and the learning rate falls to a small fraction of its "
        "peak within a small fraction of an epoch.",
        fix="Step it once per epoch, or set its length in steps.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=670,
    checks="when learning rate schedules are stepped",
    needs=[needs.calls("scheduler", missing="no learning rate schedule was stepped")],
)
@on_first_rank
def misplaced_schedules(run: Run, rank: int) -> list[Finding | None]:
    """Find schedules that start before the optimizer, and epoch schedules that are stepped with every batch."""
    return [_find_early(run, rank), _find_too_fast(run, rank)]


def _find_early(run: Run, rank: int) -> Finding | None:
    for loop_step in loop_steps(run, rank):
        for call in loop_step.calls:
            if call.call in ("step", "load"):
                return None  # a resumed training fast-forwards its schedule
            if call.call == "scheduler" and not call.detail_as(SchedulerDetail).initial:
                return error(
                    rule="scheduler-before-step",
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
    return None


def _find_too_fast(run: Run, rank: int) -> Finding | None:
    steps = loop_steps(run, rank)
    num_attempts = sum(len(loop_step.calls_of("step")) for loop_step in steps)
    scheduled = [
        call for step in steps for call in step.calls_of("scheduler") if not call.detail_as(SchedulerDetail).initial
    ]
    if not scheduled or len(scheduled) < _OFTEN * num_attempts:
        return None
    rates = [(metric.step, metric.lr) for metric in run.metrics(rank=rank) if metric.lr is not None]
    if not rates:
        return None
    peak = max(lr for _, lr in rates)
    after = rates[next(place for place, (_, lr) in enumerate(rates) if lr >= peak * (1 - 1e-6)) :]
    batches = _num_batches(steps)
    name = str(scheduled[0].detail_as(SchedulerDetail).scheduler)
    course = _describe_fall(after, peak, batches) or _describe_cycles([lr for _, lr in after], peak, name)
    length = next((found for call in scheduled if (found := call.detail_as(SchedulerDetail).length)), None)
    if course is not None and length is not None:
        course += f"; its length is {plural(length, 'step')}" + _describe_unit(length, len(training_epochs(run, rank)))
    if course is None:
        return None
    fell = next((step for step, lr in after if lr <= _fall_limit(peak)), after[-1][0])
    epoch = f", and an epoch has {plural(batches, 'batch', 'batches')}" if batches else ""
    return error(
        rule="scheduler-rate",
        confidence=0.9,
        step=fell,
        rank=rank,
        phase="optimizer",
        title="the schedule runs much faster than the training",
        why=f"{name} was stepped {plural(len(scheduled), 'time')} in "
        f"{plural(num_attempts, 'recorded step')}{epoch}: {course}",
        fix="call scheduler.step() once per epoch, after its last batch, or set the length of the schedule in steps",
        evidence=(
            {"peak": peak, "last": rates[-1][1], "num_batches": batches},
            {"scheduler": name, "num_calls": len(scheduled), "num_observed": num_attempts},
        ),
    )


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


def _describe_unit(length: int, num_epochs: int) -> str:
    return ", which is the number of epochs" if length == num_epochs else ""


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
    sizes = [call.detail_as(EpochDetail).num_batches for step in steps for call in step.calls_of("epoch")]
    return next((size for size in sizes if isinstance(size, int)), None)
