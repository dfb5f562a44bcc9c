"""Gradients that one optimizer's loss left in the parameters of another, which then steps on them."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import loop_steps
from roundoff.diagnose.rule import Code, error, on_first_rank, rule
from roundoff.runs import Finding, Run, StepDetail
from roundoff.words import plural

_MIN_STEPS = 2
_MIN_SHARE = 0.5


@rule(
    Code(
        name="leftover-gradients",
        means="A loss that is meant for one optimizer also leaves gradients in the parameters of another, as the "
        "generator's loss does in the discriminator, or the actor's in the critic. They were not cleared before the "
        "other's own loss added to them, so it steps on the sum of both.",
        fix="Call `zero_grad` of that optimizer right before the backward of its own loss.",
    ),
    order=643,
    checks="gradients of another optimizer's loss",
    needs=[
        needs.some(
            lambda run: any(len(look.optimizers) > 1 for rank in run.ranks for look in run.structures(rank=rank)),
            "there is one optimizer only",
        )
    ],
)
@on_first_rank
def leftover_gradients(run: Run, rank: int) -> Finding | None:
    """Find gradients that were there when another optimizer had stepped, and to which a later backward added."""
    calls = [call for loop_step in loop_steps(run, rank) for call in loop_step.calls_of("step")]
    found = [call for call in calls if call.detail_as(StepDetail).num_left_over]
    if not found:
        return None
    first = found[0].detail_as(StepDetail)
    own = [call for call in calls if call.detail_as(StepDetail).optimizer == first.optimizer]
    same = [call for call in found if call in own]
    looked_at = 1 + own.index(same[-1])
    if len(same) < _MIN_STEPS or len(same) < _MIN_SHARE * looked_at:
        return None
    return error(
        rule="leftover-gradients",
        confidence=0.95,
        step=found[0].step,
        rank=rank,
        phase="backward",
        title=f"{first.optimizer} steps on gradients of the loss of {first.left_by}",
        why=f"when {first.left_by} had stepped, {plural(first.num_left_over, 'parameter')} of {first.optimizer} held "
        f"gradients of the same backward; they were not cleared, the next backward added to them, and "
        f"{first.optimizer} stepped on the sum; this happened in {len(same)} of {plural(looked_at, 'observed step')} "
        f"of {first.optimizer}",
        fix=f"call zero_grad() of {first.optimizer} right before the backward of its own loss, not after its step",
        evidence=({"steps": [call.step for call in same[:20]], "left_by": first.left_by},),
    )
