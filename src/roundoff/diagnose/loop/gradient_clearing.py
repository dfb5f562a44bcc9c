"""Rules for gradients that are cleared never, or too early."""

from __future__ import annotations

import math
from collections import defaultdict

from roundoff.diagnose.loop_calls import count, first_rank_with, loop_steps
from roundoff.runs import Call, Finding, Run, Severity
from roundoff.words import plural

CLEARING_CODES = ("zero-grad-before-step", "missing-zero-grad")
_LEAST_STEPS = 2
_LEAST_SHARE = 0.5
"""Of the steps that were looked at: what happens now and then is wanted."""


def wrongly_cleared_gradients(run: Run) -> list[Finding]:
    """Find gradients that steps use again and again, and such as are cleared before the step that needs them."""
    return first_rank_with(run, lambda run, rank: _cleared_too_early(run, rank) or _never_cleared(run, rank))


def _never_cleared(run: Run, rank: int) -> list[Finding]:
    steps: dict[object, list[Call]] = defaultdict(list)
    for loop_step in loop_steps(run, rank):
        for call in loop_step.named("step"):
            steps[call.detail.get("optimizer")].append(call)
    for optimizer, calls in steps.items():
        places = [place for place, call in enumerate(calls) if count(call, "num_carried")]
        looked_at = min(len(calls) - 1, places[-1]) if places else 0
        if len(places) < _LEAST_STEPS or len(places) < _LEAST_SHARE * looked_at:
            continue
        first = calls[places[0]]
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
                why=f"when step {first.step} went backward, {plural(count(first, 'num_carried'), 'parameter')} of "
                f"{optimizer} still had the gradient that step {since} had used, and the new one was added to it; so "
                f"in {len(places)} of the {plural(looked_at, 'step')} that were looked at",
                fix="call optimizer.zero_grad() once per step, before backward or after optimizer.step()",
                evidence=({"steps": [calls[place].step for place in places]},),
            )
        ]
    return []


def _cleared_too_early(run: Run, rank: int) -> list[Finding]:
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
    if len(early) < _LEAST_STEPS or len(early) < _LEAST_SHARE * judged:
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
            why=f"zero_grad came between backward and step, so no parameter had a gradient when the optimizer stepped, "
            f"and the weights cannot learn; so in {len(early)} of the {plural(judged, 'step')} that were looked at",
            fix="move zero_grad before backward, or behind optimizer.step()",
            evidence=({"steps": early[:20]},),
        )
    ]
