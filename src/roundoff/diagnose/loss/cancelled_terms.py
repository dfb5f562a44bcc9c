"""Differences in the loss that are always 0, because both sides are computed by the same weights."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, FaultEffect, error, on_first_rank, rule
from roundoff.runs import Finding, Run

_MIN_STEPS = 2


@rule(
    Code(
        name="terms-cancel",
        means="The loss subtracts from a result one that the same weights have just computed: the difference is always "
        "0 (a ratio 1), and the gradients of both sides cancel. In PPO: old log-probabilities that are computed anew.",
        fix="Keep the old value from before the update, detached: compute it once, under `torch.no_grad()`.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=406,
    checks="differences that are always 0",
    needs=[
        needs.some(
            lambda run: any(run.criteria(rank=rank) for rank in run.ranks),
            "no loss function was seen in a replayed step",
        )
    ],
)
@on_first_rank
def cancelled_terms(run: Run, rank: int) -> Finding | None:
    """Find a line that subtracts equal results with gradients in each of several replayed steps."""
    lines: dict[str | None, set[int]] = {}
    for call in run.criteria(rank=rank):
        if call.cancels:
            lines.setdefault(call.source, set()).add(call.step)
    for source, steps in lines.items():
        if len(steps) < _MIN_STEPS:
            continue
        return error(
            rule="terms-cancel",
            confidence=0.93,
            step=min(steps),
            rank=rank,
            phase="forward",
            source=source,
            title="the loss subtracts a result from itself",
            why=f"in each of the {len(steps)} steps that were played again both sides of this difference are equal, "
            "and gradients flow through both: the difference is always 0, a ratio made of it always 1, and the "
            "gradients cancel",
            fix="keep the old side from before the update: compute it once, under torch.no_grad(), and store it",
            evidence=({"steps": sorted(steps)},),
        )
    return None
