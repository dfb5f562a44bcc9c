"""Gradients that are never cleared, or cleared too early."""

from __future__ import annotations

import math
from collections import defaultdict

from roundoff.diagnose import needs
from roundoff.diagnose.loop_calls import first_rank_with, loop_steps
from roundoff.diagnose.rule import Code, Effect, Rule
from roundoff.runs import Call, Finding, Run, Severity, StepDetail
from roundoff.words import plural

_MIN_STEPS = 2
_MIN_SHARE = 0.5
"""Of the observed steps: what happens only now and then is intended."""


def wrongly_cleared_gradients(run: Run) -> list[Finding]:
    """Find gradients that several steps use again, and gradients that are cleared before the step that needs them."""
    return first_rank_with(run, lambda run, rank: _find_cleared_early(run, rank) or _find_never_cleared(run, rank))


def _find_never_cleared(run: Run, rank: int) -> list[Finding]:
    steps: dict[object, list[Call]] = defaultdict(list)
    for loop_step in loop_steps(run, rank):
        for call in loop_step.named("step"):
            steps[call.detail_as(StepDetail).optimizer].append(call)
    for optimizer, calls in steps.items():
        places = [place for place, call in enumerate(calls) if call.detail_as(StepDetail).num_carried]
        looked_at = min(len(calls) - 1, places[-1]) if places else 0
        if len(places) < _MIN_STEPS or len(places) < _MIN_SHARE * looked_at:
            continue
        first = calls[places[0]]
        num_carried = first.detail_as(StepDetail).num_carried
        since = calls[places[0] - 1].step if places[0] else first.step
        return [
            Finding(
                rule="missing-zero-grad",
                severity=Severity.ERROR,
                confidence=0.97,
                step=since,
                rank=rank,
                phase="backward",
                title="gradients are never cleared",
                why=f"when backward ran in step {first.step}, {plural(num_carried, 'parameter')} of {optimizer} "
                f"still had the gradient that step {since} had used, and the new one was added to it; "
                f"this happened in {len(places)} of {plural(looked_at, 'observed step')}",
                fix="call optimizer.zero_grad() once per step, before backward or after optimizer.step()",
                evidence=({"steps": [calls[place].step for place in places]},),
            )
        ]
    return []


def _find_cleared_early(run: Run, rank: int) -> list[Finding]:
    norms = {metric.step: metric.grad_norm for metric in run.metrics(rank=rank)}
    early: list[int] = []
    judged = 0
    for loop_step in loop_steps(run, rank):
        order = [call.call for call in loop_step.calls if call.call in ("backward", "zero_grad", "step")]
        norm = norms.get(loop_step.step)
        if "step" not in order or norm is None:
            continue
        judged += 1
        before = order[: order.index("step")]
        has_none = norm == 0 or math.isnan(norm)
        if has_none and before and before[-1] == "zero_grad" and "backward" in before:
            early.append(loop_step.step)
    if len(early) < _MIN_STEPS or len(early) < _MIN_SHARE * judged:
        return []
    return [
        Finding(
            rule="zero-grad-before-step",
            severity=Severity.ERROR,
            confidence=0.99,
            step=early[0],
            rank=rank,
            phase="optimizer",
            title="gradients are cleared before the optimizer uses them",
            why=f"zero_grad was called between backward and step, so no parameter had a gradient when the optimizer "
            f"stepped, and the weights cannot learn; this happened in {len(early)} of "
            f"{plural(judged, 'observed step')}",
            fix="move zero_grad before backward, or after optimizer.step()",
            evidence=({"steps": early[:20]},),
        )
    ]


RULES = (
    Rule(
        order=640,
        checks="gradients cleared too early or never",
        find=wrongly_cleared_gradients,
        needs=(needs.calls("step", missing="no optimizer step was seen"),),
        codes=(
            Code(
                name="zero-grad-before-step",
                means="`zero_grad` is called between backward and step, so the optimizer never sees a gradient.",
                detected="The order of calls, and a gradient norm of 0 at the step, in at least half of the steps.",
                fix="Move `zero_grad` before backward, or after the step.",
                leads_to=(Effect.STOPS_LEARNING,),
            ),
            Code(
                name="missing-zero-grad",
                means="Gradients are never cleared: each step uses the sum of all gradients so far.",
                detected="When backward begins, parameters still have the gradient that the last step used, in at "
                "least half of the steps.",
                fix="Call `optimizer.zero_grad()` once per step.",
                leads_to=(Effect.BLOWS_UP,),
            ),
        ),
    ),
)
