"""Learning-rate schedules that are much longer than the training, and ones that begin anew when it is resumed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import training_epochs
from roundoff.diagnose.rule import Code, FaultEffect, note, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, ReadDetail, Run, SchedulerDetail
from roundoff.words import plural

_MIN_STEPS = 30
"""A training of fewer optimizer steps may be a trial."""
_MUCH_LONGER = 5
_STILL_HIGH, _STILL_LOW = 0.7, 0.6
"""Of the highest rate: what has hardly come down, and what has not come up."""
_SAME_LENGTH = 0.1
_MIN_POSITION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """One schedule, and how far it came."""

    name: str
    length: int | None
    peak: int | None
    num_taken: int
    """How many of its steps it took."""
    num_steps: int
    """How many steps the optimizer took."""
    is_per_epoch: bool
    highest: float
    last: float
    has_learned: bool
    """Whether the loss has fallen all the same."""


@rule(
    Code(
        name="schedule-too-long",
        means="The learning-rate schedule is much longer than the training: the rate is still that of a warm-up when "
        "the training ends, or never comes down. Often its length is counted in batches and the schedule is stepped "
        "once per epoch.",
        fix="Count both in the same unit: step the schedule with every batch if its length is in batches, or set its "
        "length to the number of `scheduler.step()` calls that the training makes.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=672,
    checks="learning rate schedules that are longer than the training",
    needs=[needs.calls("scheduler", missing="no learning rate schedule was stepped")],
)
@on_first_rank
def long_schedules(run: Run, rank: int) -> Finding | None:
    """Compare the planned length of each schedule with how often it was stepped, and with the rates of the steps.

    A warm-up counts that the training ends in the first part of; a decay, if it hardly began and the schedule has as
    many steps as the training, but was stepped once per epoch.
    """
    schedule = _schedule(run, rank)
    if schedule is None or schedule.num_steps < _MIN_STEPS:
        return None
    unit = "once per epoch" if schedule.is_per_epoch else "with every step of the optimizer"
    taken = f"it was stepped {plural(schedule.num_taken, 'time')}, {unit}, in {plural(schedule.num_steps, 'step')}"
    peak, length = schedule.peak, schedule.length
    if peak is not None and schedule.num_taken <= _STILL_LOW * peak and schedule.last >= schedule.highest * 0.999:
        return _finding(
            schedule,
            rank,
            title="the warm-up is longer than the training",
            why=f"{schedule.name} raises the learning rate for its first {plural(peak, 'step')}; {taken}: the training "
            f"ended at {format_short(schedule.last)}, about {schedule.num_taken / peak:.0%} of the highest rate",
        )
    if length is None or not schedule.is_per_epoch or length < _MUCH_LONGER * schedule.num_taken:
        return None
    has_same_length = abs(length - schedule.num_steps) <= _SAME_LENGTH * schedule.num_steps
    if not has_same_length or schedule.last < _STILL_HIGH * schedule.highest:
        return None
    return _finding(
        schedule,
        rank,
        title="the schedule never brings the learning rate down",
        why=f"the length of {schedule.name} is {plural(length, 'step')}, as many as the optimizer takes; {taken}: the "
        f"learning rate was {format_short(schedule.highest)} at its highest and is {format_short(schedule.last)} at "
        "the end",
    )


def _finding(schedule: _Schedule, rank: int, *, title: str, why: str) -> Finding:
    per_batch = "call scheduler.step() after every optimizer.step(), inside the loop over batches"
    counted = "set the lengths of the schedule in the unit in which scheduler.step() is called"
    make = warning if schedule.is_per_epoch or not schedule.has_learned else note  # a training may be cut short
    return make(
        rule="schedule-too-long",
        confidence=0.9,
        step=schedule.num_steps - 1,
        rank=rank,
        phase="optimizer",
        title=title,
        why=why,
        fix=f"{per_batch}; or {counted}" if schedule.is_per_epoch else f"{counted}: number of epochs x len(loader)",
        evidence=(
            {"length": schedule.length, "peak": schedule.peak, "taken": schedule.num_taken, "last": schedule.last},
        ),
    )


def _schedule(run: Run, rank: int) -> _Schedule | None:
    """Return the first schedule whose plan is known, if its steps are those of one scheduler."""
    details = [(c.step, c.detail_as(SchedulerDetail)) for c in run.calls(rank=rank) if c.call == "scheduler"]
    stepped = [(step, detail) for step, detail in details if not detail.initial and detail.position is not None]
    plan = next((detail for _, detail in stepped if detail.length or detail.peak), None)
    own = [(step, detail.position or 0) for step, detail in stepped if plan and detail.scheduler == plan.scheduler]
    rates = [(metric.step, metric.lr) for metric in run.metrics(rank=rank) if metric.lr is not None]
    if plan is None or not rates or any(a >= b for (_, a), (_, b) in itertools.pairwise(own)):
        return None  # two schedulers of a class, or one that was set back
    steps, (last_step, position) = {step for step, _ in own}, own[-1]
    is_per_epoch = len(own) < 0.5 * len({call.step for call in run.calls(rank=rank) if call.call == "step"})
    is_thinned = not is_per_epoch and rates[-1][0] > last_step and len(steps) > 1
    return _Schedule(
        name=str(plan.scheduler),
        length=plan.length,
        peak=plan.peak,
        num_taken=position + (rates[-1][0] - last_step if is_thinned else 0),
        num_steps=rates[-1][0] + 1,
        is_per_epoch=is_per_epoch and (len(training_epochs(run, rank)) > 1 or len(own) > 1),
        highest=max(rate for _, rate in rates),
        last=rates[-1][1],
        has_learned=_has_fallen([metric.loss for metric in run.metrics(rank=rank) if metric.loss is not None]),
    )


def _has_fallen(losses: Sequence[float]) -> bool:
    """Return whether the losses of the last tenth are lower than those of the first."""
    tenth = -(-len(losses) // 10)
    return bool(losses) and median(losses[-tenth:]) < median(losses[:tenth])


@rule(
    Code(
        name="schedule-state-lost",
        means="A checkpoint was read that holds how far the learning-rate schedule was, but the schedule began anew.",
        fix="Load it: `scheduler.load_state_dict(checkpoint[...])`, after the optimizer's.",
    ),
    order=267,
    checks="schedules whose saved position is not restored",
    needs=[needs.calls("read", missing="no checkpoint was read")],
)
@on_first_rank
def lost_schedules(run: Run, rank: int) -> Finding | None:
    """Find a schedule that takes its first step after a checkpoint was read in which one was further."""
    saved: int | None = None
    for call in run.calls(rank=rank):
        if call.call == "read" and (positions := call.detail_as(ReadDetail).schedule_positions):
            saved = max(positions)
        elif call.call == "scheduler" and saved is not None:
            detail = call.detail_as(SchedulerDetail)
            if detail.initial:
                continue
            if saved < _MIN_POSITION or detail.position != 1:
                return None
            return warning(
                rule="schedule-state-lost",
                confidence=0.95,
                step=call.step,
                rank=rank,
                phase="optimizer",
                title="the learning-rate schedule begins anew after a checkpoint was loaded",
                why=f"the checkpoint holds a schedule that had taken {plural(saved, 'step')}; the first step of "
                f"{detail.scheduler} after it was read is its step 1, so the saved position was not restored",
                fix="call scheduler.load_state_dict() with the saved state, after optimizer.load_state_dict()",
                evidence=({"saved": saved, "position": detail.position},),
            )
    return None
