"""Gradients that are never cleared, cleared too early, or clipped and used while still multiplied by the loss scale."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import loop_steps, targets_of
from roundoff.diagnose.rule import Code, FaultEffect, error, on_first_rank, rule
from roundoff.diagnose.wording import format_short, format_whole
from roundoff.runs import BackwardDetail, BatchFacts, Call, ClipDetail, Finding, JsonValue, Run, StepDetail
from roundoff.words import plural

_MIN_STEPS = 2
_MIN_SHARE = 0.5
"""Of the observed steps: what happens only now and then is intended."""


@rule(
    Code(
        name="zero-grad-before-step",
        means="`zero_grad` is called between backward and step, so the optimizer never sees a gradient.",
        detected="The order of calls, and a gradient norm of 0 at the step, in at least half of the steps.",
        fix="Move `zero_grad` before backward, or after the step.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    Code(
        name="missing-zero-grad",
        means="Gradients are never cleared: each step uses the sum of all gradients so far.",
        detected="When backward begins, parameters still have the gradient that the last step used, or that the last "
        "evaluation of the closure computed (L-BFGS evaluates it several times in a step), in at least half of the "
        "steps.",
        fix="Call `optimizer.zero_grad()` once per step; with a closure, first thing inside it.",
        leads_to=(FaultEffect.BLOWS_UP,),
    ),
    Code(
        name="gradients-thrown-away",
        means="Gradients of several microbatches are to be accumulated, but are cleared before each of them: only the "
        "last one counts.",
        detected="The order of calls: zero_grad between two backwards on different batches, with no step in between, "
        "in at least half of the steps of the only optimizer.",
        fix="Call `zero_grad` once per step, after `optimizer.step()`.",
    ),
    order=640,
    checks="gradients cleared too early or never",
    needs=[needs.optimizer_steps],
)
@on_first_rank
def wrongly_cleared_gradients(run: Run, rank: int) -> Finding | None:
    """Find gradients that several steps use again, and gradients that are cleared before the step that needs them."""
    found = _find_cleared_early(run, rank) or _find_never_cleared(run, rank) or _find_carried_in_closure(run, rank)
    return found or _find_thrown_away(run, rank)


def _steps_by_optimizer(run: Run, rank: int) -> dict[object, list[Call]]:
    steps: dict[object, list[Call]] = defaultdict(list)
    for loop_step in loop_steps(run, rank):
        for call in loop_step.calls_of("step"):
            steps[call.detail_as(StepDetail).optimizer].append(call)
    return steps


def _find_carried_in_closure(run: Run, rank: int) -> Finding | None:
    for optimizer, calls in _steps_by_optimizer(run, rank).items():
        found = [call for call in calls if call.detail_as(StepDetail).num_carried_in_closure]
        looked_at = 1 + calls.index(found[-1]) if found else 0
        if len(found) < _MIN_STEPS or len(found) < _MIN_SHARE * looked_at:
            continue
        num_carried = found[0].detail_as(StepDetail).num_carried_in_closure
        return error(
            rule="missing-zero-grad",
            confidence=0.97,
            step=found[0].step,
            rank=rank,
            phase="backward",
            title="the closure does not clear the gradients",
            why=f"{optimizer} evaluates its closure several times in a step; when it did so in step {found[0].step}, "
            f"{plural(num_carried, 'parameter')} still had the gradient of the evaluation before, and the new one was "
            f"added to it, so {optimizer} works with sums; this happened in {len(found)} of "
            f"{plural(looked_at, 'observed step')}",
            fix="call optimizer.zero_grad() inside the closure, before its backward",
            evidence=(_steps(found, looked_at=looked_at), {"optimizer": str(optimizer), "num_carried": num_carried}),
        )
    return None


def _find_never_cleared(run: Run, rank: int) -> Finding | None:
    for optimizer, calls in _steps_by_optimizer(run, rank).items():
        places = [place for place, call in enumerate(calls) if call.detail_as(StepDetail).num_carried]
        looked_at = min(len(calls) - 1, places[-1]) if places else 0
        if len(places) < _MIN_STEPS or len(places) < _MIN_SHARE * looked_at:
            continue
        first = calls[places[0]]
        num_carried = first.detail_as(StepDetail).num_carried
        since = calls[places[0] - 1].step if places[0] else first.step
        return error(
            rule="missing-zero-grad",
            confidence=0.97,
            step=since,
            rank=rank,
            phase="backward",
            title="gradients are never cleared",
            why=f"when backward ran in step {first.step}, {plural(num_carried, 'parameter')} of {optimizer} "
            f"still had the gradient that step {since} had used, and the new one was added to it; "
            f"this happened in {len(places)} of {plural(looked_at, 'observed step')}",
            fix="call optimizer.zero_grad() once per step, before backward or after optimizer.step()",
            evidence=(
                _steps([calls[place] for place in places], looked_at=looked_at),
                {"optimizer": str(optimizer), "num_carried": num_carried},
            ),
        )
    return None


def _find_cleared_early(run: Run, rank: int) -> Finding | None:
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
        return None
    return error(
        rule="zero-grad-before-step",
        confidence=0.99,
        step=early[0],
        rank=rank,
        phase="optimizer",
        title="gradients are cleared before the optimizer uses them",
        why=f"zero_grad was called between backward and step, so no parameter had a gradient when the optimizer "
        f"stepped, and the weights cannot learn; this happened in {len(early)} of "
        f"{plural(judged, 'observed step')}",
        fix="move zero_grad before backward, or after optimizer.step()",
        evidence=({"steps": early[:20], "num_steps": len(early), "num_observed": judged},),
    )


def _find_thrown_away(run: Run, rank: int) -> Finding | None:
    if any(len(look.optimizers) > 1 for look in run.structures(rank=rank)):
        return None  # what is cleared may belong to another optimizer than the one that steps
    attempts = list(_attempts(run, rank))
    lost = [attempt for attempt in attempts if attempt.num_lost and attempt.is_each_new is not False]
    if not any(attempt.is_each_new for attempt in lost):
        return None
    if len(lost) < _MIN_STEPS or len(lost) < _MIN_SHARE * len(attempts):
        return None
    first = lost[0]
    return error(
        rule="gradients-thrown-away",
        confidence=0.9,
        step=first.step,
        rank=rank,
        phase="backward",
        title=f"the gradients of {first.num_lost} of {first.num_backwards} microbatches are thrown away",
        why=f"the optimizer steps after {plural(first.num_backwards, 'backward')}, each on a batch of its own, but "
        "zero_grad is called in between: only what came after the last zero_grad reaches the weights; this happened "
        f"before {len(lost)} of {plural(len(attempts), 'observed optimizer step')}",
        fix="call zero_grad once per step, right after optimizer.step()",
        evidence=(
            {"steps": [attempt.step for attempt in lost[:20]], "num_steps": len(lost), "num_observed": len(attempts)},
            {"backwards": first.num_backwards, "num_lost": first.num_lost},
        ),
    )


@dataclass(frozen=True, slots=True)
class _ClearedAttempt:
    """An optimizer step, and the backwards since the one before it."""

    step: int
    num_backwards: int
    num_lost: int
    """How many of them were cleared before the step."""
    is_each_new: bool | None
    """Whether each saw a batch of its own, as far as batches are known; None if fewer than two are."""


def _attempts(run: Run, rank: int) -> Iterator[_ClearedAttempt]:
    """Yield the optimizer's steps.

    Microbatches have inputs and targets of their own. Where one is shared, the gradients were looked at before they
    were cleared, as adversarial, sharpness-aware and multi-task trainings do.
    """
    seen = {batch.step: batch for batch in run.inputs(rank=rank)}
    steps: list[int] = []
    num_kept, stepped = 0, -1
    for call in run.calls(rank=rank):
        if call.call == "backward" and call.step != stepped:  # else it runs in the closure of that step
            steps.append(call.step)
            num_kept += 1
        elif call.call == "zero_grad":
            num_kept = 0
        elif call.call == "step":
            if steps and {*range(stepped + 1, call.step + 1)} <= {
                *steps,
                call.step,
            }:  # none was left out of the journal
                batches = [seen[step] for step in steps if step in seen]
                inputs, targets = {_first_input(batch) for batch in batches}, {_target(batch) for batch in batches}
                is_each_new = min(len(inputs), len(targets)) == len(batches) if len(batches) > 1 else None
                num_lost = len(steps) - num_kept if num_kept else 0
                yield _ClearedAttempt(steps[0], len(steps), num_lost, is_each_new)
            steps, num_kept, stepped = [], 0, call.step


def _first_input(batch: BatchFacts) -> str | None:
    """Return the hash of what the first model of a step was given first."""
    return next((tensor.hash for tensor in batch.tensors if not tensor.is_target), None)


def _target(batch: BatchFacts) -> str | None:
    return next((tensor.hash for tensor in targets_of(batch)), None)


@rule(
    Code(
        name="step-on-scaled-gradients",
        means="The loss was scaled, and the optimizer stepped without unscaling: its gradients are too large by the "
        "loss scale.",
        detected="The order of calls: backward ran on a scaled loss, and the optimizer stepped before its gradients "
        "were unscaled.",
        fix="Step through the scaler: `scaler.step(optimizer)`, then `scaler.update()`.",
        leads_to=(FaultEffect.BLOWS_UP,),
    ),
    Code(
        name="clip-before-unscale",
        means="Gradients were clipped while still multiplied by the loss scale, so almost nothing is left of them "
        "after unscaling.",
        detected="The order of calls: clipping came between a scaled backward and the unscaling.",
        fix="Call `scaler.unscale_(optimizer)`, then clip, then `scaler.step(optimizer)`.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=630,
    checks="gradients used while still multiplied by the loss scale",
    needs=[needs.loss_scaling],
)
@on_first_rank
def scaled_gradients(run: Run, rank: int) -> Finding | None:
    """Find steps and clipping between a scaled backward and its unscaling."""
    clips, steps = _early_calls(run, rank)
    if not clips and not steps:
        return None
    metrics = {metric.step: metric for metric in run.metrics(rank=rank)}
    scale = next((found for call in (*steps, *clips) if (found := metrics[call.step].loss_scale)), None)
    if scale is None or scale == 1.0:
        return None
    if steps:
        return _step_finding(steps, scale, metrics[steps[0].step].grad_norm, rank)
    return _clip_finding(clips, scale, rank)


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
    return error(
        rule="step-on-scaled-gradients",
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
        evidence=({"scale": scale, "grad_norm": norm} | _steps(steps),),
    )


def _clip_finding(clips: Sequence[Call], scale: float, rank: int) -> Finding:
    effect = ""
    norm, most = clips[0].detail_as(ClipDetail).total_norm, clips[0].detail_as(ClipDetail).max_norm
    if isinstance(norm, (int, float)) and isinstance(most, (int, float)) and norm > 0:
        effect = (
            f": their norm was {format_short(norm)}, or {format_short(norm / scale)} unscaled; clipping to "
            f"{format_short(most)} and then unscaling leaves {format_short(min(most, norm) / scale)}"
        )
    return error(
        rule="clip-before-unscale",
        confidence=0.99,
        step=clips[0].step,
        rank=rank,
        phase="optimizer",
        title="gradients are clipped before they are unscaled",
        why=f"clipping was applied to gradients still multiplied by the loss scale {format_whole(scale)}{effect}; "
        f"{_how_often(clips)}",
        fix="unscale first: scaler.unscale_(optimizer), then clip, then scaler.step(optimizer)",
        evidence=({"scale": scale, "total_norm": norm, "max_norm": most} | _steps(clips),),
    )


def _steps(calls: Sequence[Call], *, looked_at: int | None = None) -> dict[str, JsonValue]:
    """Return in which steps something happened, as evidence: the first twenty, their number, and of how many."""
    steps: list[JsonValue] = [*dict.fromkeys(call.step for call in calls)]
    observed: dict[str, JsonValue] = {} if looked_at is None else {"num_observed": looked_at}
    return {"steps": steps[:20], "num_steps": len(steps), **observed}


def _how_often(calls: Sequence[Call]) -> str:
    return f"this happened in {plural(len({call.step for call in calls}), 'step')} since step {calls[0].step}"
