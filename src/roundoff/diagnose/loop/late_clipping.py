"""Gradients that are clipped when it does nothing: after the step that used them, or before there are any."""

from __future__ import annotations

import math

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import loop_steps
from roundoff.diagnose.rule import Code, FaultEffect, error, on_first_rank, rule
from roundoff.diagnose.wording import format_short
from roundoff.runs import Call, ClipDetail, Finding, Run
from roundoff.words import plural

_MIN_LATE = 2


@rule(
    Code(
        name="clip-after-step",
        means="Gradients are clipped after the optimizer has used them: no step is limited.",
        detected="The order of calls: clipping comes after the step, and nothing uses the gradients after it.",
        fix="Clip between backward and `optimizer.step()`.",
        leads_to=(FaultEffect.BLOWS_UP,),
    ),
    Code(
        name="clip-before-backward",
        means="Gradients are clipped before backward computes them: their norm is 0 then, and no step is limited.",
        detected="The order of calls and the norm: clipping comes before backward, and what it clips has the norm 0.",
        fix="Clip between backward and `optimizer.step()`.",
        leads_to=(FaultEffect.BLOWS_UP,),
    ),
    order=635,
    checks="gradients clipped at the wrong place",
    needs=[needs.calls("clip", missing="no gradient is clipped"), needs.optimizer_steps],
)
@on_first_rank
def late_clipping(run: Run, rank: int) -> Finding | None:
    """Find clipping that always comes after the step that used the gradients, or before they are computed."""
    if (early := _early_clipping(run, rank)) is not None:
        return early
    late: list[Call] = []
    for step in loop_steps(run, rank):
        waiting: list[Call] = []
        has_stepped = False
        for call in step.calls:
            if call.call == "clip" and not has_stepped:
                return None
            if call.call == "clip":
                waiting.append(call)
            elif call.call in ("backward", "step") and waiting:
                return None  # used after all, or carried over into another sum
            has_stepped = call.call == "step" or (has_stepped and call.call != "backward")  # as in a closure
        late += waiting
    clipped = [call for call in late if _would_clip(call.detail_as(ClipDetail))]
    if len(late) < _MIN_LATE or not clipped:
        return None
    detail = clipped[0].detail_as(ClipDetail)
    norms = " to ".join(format_short(norm or 0.0) for norm in (detail.total_norm, detail.max_norm))
    return error(
        rule="clip-after-step",
        confidence=0.97,
        step=clipped[0].step,
        rank=rank,
        phase="optimizer",
        title="gradients are clipped after the step that used them",
        why=f"in {plural(len(late), 'step')} the gradients were clipped only after the optimizer had stepped (in step "
        f"{clipped[0].step} from {norms}), and never before: the steps used them as they were",
        fix="clip between backward and optimizer.step()",
        evidence=(
            {"steps": [call.step for call in late[:20]], "num_steps": len(late)},
            {"total_norm": detail.total_norm, "max_norm": detail.max_norm},
        ),
    )


def _early_clipping(run: Run, rank: int) -> Finding | None:
    """Find clipping of gradients that are all 0, in each step before its only backward."""
    early: list[Call] = []
    for step in loop_steps(run, rank):
        kinds = [call.call for call in step.calls]
        clips = step.calls_of("clip")
        if clips and (kinds.count("backward") != 1 or kinds.index("clip") > kinds.index("backward")):
            return None
        early += clips
    if len(early) < _MIN_LATE or any(call.detail_as(ClipDetail).total_norm != 0 for call in early):
        return None
    return error(
        rule="clip-before-backward",
        confidence=0.97,
        step=early[0].step,
        rank=rank,
        phase="optimizer",
        title="gradients are clipped before backward computes them",
        why=f"in {plural(len(early), 'step')} the gradients were clipped before backward, when their norm was 0: the "
        "optimizer used them as backward left them",
        fix="clip between backward and optimizer.step()",
        evidence=({"steps": [call.step for call in early[:20]], "num_steps": len(early), "total_norm": 0.0},),
    )


def _would_clip(detail: ClipDetail) -> bool:
    """Say whether a clipping is more than a way to measure the norm."""
    norm, limit = detail.total_norm, detail.max_norm
    return norm is not None and limit is not None and math.isfinite(limit) and not norm <= limit
