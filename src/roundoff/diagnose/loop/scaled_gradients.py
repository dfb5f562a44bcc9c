"""Gradients that are clipped or used while still multiplied by the loss scale."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.loop_calls import first_rank_with, loop_steps
from roundoff.diagnose.rule import Code, Effect, Rule
from roundoff.diagnose.wording import format_short, format_whole
from roundoff.runs import BackwardDetail, Call, ClipDetail, Finding, Run, Severity, StepDetail
from roundoff.words import plural


def scaled_gradients(run: Run) -> list[Finding]:
    """Find steps and clipping between a scaled backward and its unscaling."""
    return first_rank_with(run, _of_rank)


def _of_rank(run: Run, rank: int) -> list[Finding]:
    clips, steps = _early_calls(run, rank)
    if not clips and not steps:
        return []
    metrics = {metric.step: metric for metric in run.metrics(rank=rank)}
    scale = next((found for call in (*steps, *clips) if (found := metrics[call.step].loss_scale)), None)
    if scale is None or scale == 1.0:
        return []
    if steps:
        return [_step_finding(steps, scale, metrics[steps[0].step].grad_norm, rank)]
    return [_clip_finding(clips, scale, rank)]


def _early_calls(run: Run, rank: int) -> tuple[list[Call], list[Call]]:
    """Return the clip and step calls on gradients that come only from scaled losses."""
    clips: list[Call] = []
    steps: list[Call] = []
    is_scaled: bool | None = None  # None without gradients, False also where a plain loss added to them
    clipped: Call | None = None
    for loop_step in loop_steps(run, rank):
        for call in loop_step.calls:
            by_scaler = bool(call.detail_as(StepDetail).by_scaler or call.detail_as(StepDetail).skipped)
            if call.call == "backward":
                is_scaled = bool(call.detail_as(BackwardDetail).is_scaled) and is_scaled is not False
            elif call.call == "clip" and is_scaled:
                clipped = call
            elif call.call == "step" and is_scaled and not by_scaler:
                steps.append(call)
            if clipped is not None and (call.call == "unscale" or (call.call == "step" and by_scaler)):
                clips.append(clipped)
            if call.call in ("unscale", "zero_grad", "step"):
                is_scaled, clipped = None, None
    return clips, steps


def _step_finding(steps: Sequence[Call], scale: float, norm: float | None, rank: int) -> Finding:
    norms = f" (norm {format_short(norm)} instead of {format_short(norm / scale)})" if norm else ""
    return Finding(
        rule="step-on-scaled-gradients",
        severity=Severity.ERROR,
        confidence=0.99,
        step=steps[0].step,
        rank=rank,
        phase="optimizer",
        title="the optimizer steps on scaled gradients",
        why=f"the loss was multiplied by {format_whole(scale)} before backward, and "
        f"{steps[0].detail_as(StepDetail).optimizer} stepped without the scaler: its gradients are "
        f"{format_whole(scale)} times too large{norms}; "
        f"{_how_often(steps)}",
        fix="step through the scaler, which unscales first: scaler.step(optimizer); scaler.update()",
        evidence=({"scale": scale, "grad_norm": norm, "steps": [call.step for call in steps[:20]]},),
    )


def _clip_finding(clips: Sequence[Call], scale: float, rank: int) -> Finding:
    effect = ""
    norm, most = clips[0].detail_as(ClipDetail).total_norm, clips[0].detail_as(ClipDetail).max_norm
    if isinstance(norm, (int, float)) and isinstance(most, (int, float)) and norm > 0:
        effect = (
            f": their norm was {format_short(norm)}, or {format_short(norm / scale)} unscaled; clipping to "
            f"{format_short(most)} and then unscaling leaves {format_short(min(most, norm) / scale)}"
        )
    return Finding(
        rule="clip-before-unscale",
        severity=Severity.ERROR,
        confidence=0.99,
        step=clips[0].step,
        rank=rank,
        phase="optimizer",
        title="gradients are clipped before they are unscaled",
        why=f"clipping was applied to gradients still multiplied by the loss scale {format_whole(scale)}{effect}; "
        f"{_how_often(clips)}",
        fix="unscale first: scaler.unscale_(optimizer), then clip, then scaler.step(optimizer)",
        evidence=({"scale": scale, "total_norm": norm, "max_norm": most, "steps": [call.step for call in clips[:20]]},),
    )


def _how_often(calls: Sequence[Call]) -> str:
    return f"this happened in {plural(len({call.step for call in calls}), 'step')} since step {calls[0].step}"


RULES = (
    Rule(
        order=630,
        checks="gradients used while still multiplied by the loss scale",
        find=scaled_gradients,
        needs=(needs.loss_scaling,),
        codes=(
            Code(
                name="step-on-scaled-gradients",
                means="The loss was scaled, and the optimizer stepped without unscaling: its gradients are too large "
                "by the loss scale.",
                detected="The order of calls: backward ran on a scaled loss, and the optimizer stepped before its "
                "gradients were unscaled.",
                fix="Step through the scaler: `scaler.step(optimizer)`, then `scaler.update()`.",
                leads_to=(Effect.BLOWS_UP,),
            ),
            Code(
                name="clip-before-unscale",
                means="Gradients were clipped while still multiplied by the loss scale, so almost nothing is left of "
                "them after unscaling.",
                detected="The order of calls: clipping came between a scaled backward and the unscaling.",
                fix="Call `scaler.unscale_(optimizer)`, then clip, then `scaler.step(optimizer)`.",
                leads_to=(Effect.STOPS_LEARNING,),
            ),
        ),
    ),
)
