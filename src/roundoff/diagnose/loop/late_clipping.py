"""Gradients that are clipped at the wrong place: after the step, before backward; or to almost nothing."""

from __future__ import annotations

import math
from statistics import median

from roundoff.diagnose import needs
from roundoff.diagnose.loop.learning_rate import movements
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


_MANY_TIMES, _NEARLY_ALL, _MIN_CLIPS = 50.0, 0.9, 20
_LITTLE_TRAVEL = 0.1
_SCALE_FREE = ("betas", "alpha", "rho", "lambd", "etas")
"""Settings of optimizers that divide gradients by their size, so that a factor on all of them hardly matters."""


@rule(
    Code(
        name="clip-too-low",
        means="Gradients are clipped to a small fraction of their norm in every step, so the weights hardly move.",
        fix="Raise `max_norm` to about the norm that gradients usually have; 1.0 is common.",
        follows_from=("clip-before-unscale",),
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=637,
    checks="gradients clipped to almost nothing",
    needs=[needs.calls("clip", missing="no gradient is clipped"), needs.measured_parameters],
)
@on_first_rank
def low_clipping(run: Run, rank: int) -> Finding | None:
    """Find a limit far below the norm of the gradients in nearly all steps, with which the weights hardly move.

    Adam and its like divide gradients by their size: there a low limit does no harm by itself.
    """
    groups = [group for look in run.structures(rank=rank)[-1:] for each in look.optimizers for group in each.groups]
    clips = [(call.step, call.detail_as(ClipDetail)) for call in run.calls(rank=rank) if call.call == "clip"]
    norms = [(step, c.total_norm, c.max_norm) for step, c in clips if c.total_norm and c.max_norm]
    if not groups or len(norms) < _MIN_CLIPS or any(name in group for group in groups for name in _SCALE_FREE):
        return None
    if sum(norm > _MANY_TIMES * limit for _, norm, limit in norms) < _NEARLY_ALL * len(clips):
        return None
    moved = movements(run, rank)
    num_steps = max((metric.step for metric in run.metrics(rank=rank)), default=0) + 1
    travel = median(one.ratio for one in moved) * num_steps if moved else 1.0
    if travel > _LITTLE_TRAVEL:
        return None
    usual, limit = median(norm for _, norm, _ in norms), norms[0][2]
    return error(
        rule="clip-too-low",
        confidence=0.9,
        step=norms[0][0],
        rank=rank,
        phase="optimizer",
        title="gradients are clipped to almost nothing",
        why=f"the norm of the gradients is {format_short(usual)} (median of {plural(len(norms), 'recorded step')}); "
        f"clipping leaves {format_short(limit)}, a {format_short(usual / limit)}th of it; all "
        f"{plural(num_steps, 'step')} together move the weights by at most {format_short(travel)} of their size",
        fix=f"raise max_norm from {limit:g} to about {format_short(usual)}, or leave the clipping out",
        evidence=({"norm": usual, "limit": limit, "travel": travel},),
    )


def _would_clip(detail: ClipDetail) -> bool:
    """Say whether a clipping is more than a way to measure the norm."""
    norm, limit = detail.total_norm, detail.max_norm
    return norm is not None and limit is not None and math.isfinite(limit) and not norm <= limit
