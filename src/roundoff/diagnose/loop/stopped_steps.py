"""Optimizers that step no longer although backward goes on, or that hold nothing they could change."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import LoopStep, loop_steps
from roundoff.diagnose.parameter_histories import parameter_histories
from roundoff.diagnose.rule import Code, FaultEffect, error, on_first_rank, rule, warning
from roundoff.runs import Finding, ForwardDetail, Metrics, Run, StepDetail, ZeroGradDetail
from roundoff.words import join_names, plural

_MIN_BACKWARDS = 10
_TIMES_MORE = 4
"""So many times more backwards without a step than before any step are no accumulation."""
_MIN_SHARE = 0.1
"""Of all steps: the end of a training may compute some gradients for another purpose."""
_MIN_OTHER_STEPS, _TIMES_LONGER = 20, 10
"""Others must step this often, and this many times longer than the longest pause of the optimizer so far."""
_MIN_CLEARED = 3


@rule(
    Code(
        name="stepping-stopped",
        means="An optimizer stepped, and from some step on does not any more, while backward goes on: a condition "
        "around `step()` that is never true again. Or it steps, but holds only parameters that are frozen.",
        fix="Check the condition around `optimizer.step()`; give the optimizer the parameters that require gradients.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
        follows_from=(FaultEffect.NONFINITE,),
    ),
    order=205,
    checks="optimizers that stop stepping, or hold only frozen parameters",
    needs=[needs.optimizer_steps],
)
@on_first_rank
def stopped_optimizers(run: Run, rank: int) -> Finding | None:
    """Find optimizers that stepped and no longer do, and those whose parameters are all frozen."""
    return _find_frozen(run, rank) or _find_end(run, rank) or _find_one_stopped(run, rank)


def _find_frozen(run: Run, rank: int) -> Finding | None:
    """Find an optimizer that steps, and none of whose parameters ever required a gradient or changed.

    Next to others it may be the one of a body that is unfrozen later, which the first steps do not show.
    """
    looks = run.structures(rank=rank)
    stepped = {call.detail_as(StepDetail).optimizer for call in run.calls(rank=rank) if call.call == "step"}
    held: dict[str, dict[str | None, bool]] = {}
    for parameter in (parameter for look in looks for parameter in look.parameters):
        for name in parameter.optimizers:
            known = held.setdefault(name, {})
            known[parameter.name] = known.get(parameter.name, False) or parameter.requires_grad
    for name, parameters in held.items():
        if stepped != {name} or any(parameters.values()):
            continue
        names = [parameter for parameter in parameters if parameter is not None]
        histories = parameter_histories(run, rank, names=names)
        if names and not any((history.update > 0).any() for history in histories.values()):
            return _frozen_finding(name, names, rank)
    return None


def _frozen_finding(optimizer: str, names: Sequence[str], rank: int) -> Finding:
    return error(
        rule="stepping-stopped",
        confidence=0.95,
        step=0,
        rank=rank,
        phase="optimizer",
        parameter=names[0],
        title=f"{optimizer} holds only frozen parameters",
        why=f"requires_grad is False for all {plural(len(names), 'parameter')} that it holds ({join_names(names)}), so "
        "its steps change nothing",
        fix="give the optimizer the parameters that require gradients, or unfreeze these before training: "
        "parameter.requires_grad_(True)",
        evidence=({"optimizer": optimizer, "parameters": [*names]},),
    )


def _find_end(run: Run, rank: int) -> Finding | None:
    """Find a training in which no optimizer steps any more: the last step has many backwards and no attempt."""
    steps = loop_steps(run, rank)
    if len(steps) < 2:
        return None
    *before, last = steps
    attempts = [call for step in before for call in step.calls_of("step")]
    backwards = len(last.calls_of("backward"))
    usual = max(len(step.calls_of("backward")) for step in before)
    num_steps = len(run.metrics(rank=rank))
    is_long = backwards >= max(_MIN_BACKWARDS, _TIMES_MORE * usual, _MIN_SHARE * num_steps)
    if not attempts or not is_long or last.calls_of("step") or not _is_training(last):
        return None
    name = attempts[-1].detail_as(StepDetail).optimizer
    return error(
        rule="stepping-stopped",
        confidence=0.9,
        step=last.step,
        rank=rank,
        phase="optimizer",
        title=f"{name} does not step any more",
        why=f"it stepped up to step {last.step - 1}, after {plural(usual, 'backward')} at most; since then "
        f"{plural(backwards, 'backward')} have computed gradients in train mode, and no step was called: the weights "
        "have not changed",
        fix="check the condition around optimizer.step(): a counter, a comparison with the best loss, an early return",
        evidence=({"optimizer": name, "backwards": backwards, "usual": usual},),
    )


def _is_training(step: LoopStep) -> bool:
    """Say whether the forwards of a step ran in train mode: gradients may also be computed to look at a model."""
    modes = [call.detail.training for call in step.calls_of("forward") if isinstance(call.detail, ForwardDetail)]
    return bool(modes) and sum(map(bool, modes)) * 2 > len(modes)


def _find_one_stopped(run: Run, rank: int) -> Finding | None:
    """Find an optimizer that the loop still clears, but steps no longer, while others go on."""
    metrics = [metric for metric in run.metrics(rank=rank) if metric.optimizer is not None]
    calls = run.calls(rank=rank)
    for name in dict.fromkeys(metric.optimizer for metric in metrics):
        own = [metric.step for metric in metrics if metric.optimizer == name]
        after = [metric for metric in metrics if metric.step > own[-1]]
        if len(after) < max(_MIN_OTHER_STEPS, _TIMES_LONGER * _longest_pause(own, metrics)):
            continue
        late = [call for call in calls if call.step > own[-1]]
        num_cleared = sum(call.call == "zero_grad" and call.detail_as(ZeroGradDetail).of == name for call in late)
        has_stepped = any(call.call == "step" and call.detail_as(StepDetail).optimizer == name for call in late)
        if num_cleared >= _MIN_CLEARED and not has_stepped:
            others = list(dict.fromkeys(str(metric.optimizer) for metric in after))
            return warning(
                rule="stepping-stopped",
                confidence=0.85,
                step=own[-1] + 1,
                rank=rank,
                phase="optimizer",
                title=f"{name} does not step any more",
                why=f"it stepped {plural(len(own), 'time')}, for the last time in step {own[-1]}; since then "
                f"{join_names(others)} stepped {plural(len(after), 'time')} and the loop cleared the gradients of "
                f"{name} at least {plural(num_cleared, 'time')}, but its step was not called again",
                fix="check the condition around its step(); if it should stop, leave out its zero_grad and backward",
                evidence=({"optimizer": name, "last_step": own[-1], "other_steps": len(after)},),
            )
    return None


def _longest_pause(own: Sequence[int], metrics: Sequence[Metrics]) -> int:
    """Return how many steps of others came between two of one optimizer, at most."""
    pauses = [later - earlier for earlier, later in pairwise(own)]
    return max(pauses, default=len(metrics))
