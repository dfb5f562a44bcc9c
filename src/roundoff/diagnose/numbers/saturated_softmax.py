"""Attention that puts all its weight on one position, so that nothing can be learned through it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, FaultEffect, error, on_each_rank, place_of, rule
from roundoff.diagnose.step_flow import Flow, op_names, recorded_steps, root_mean_square
from roundoff.diagnose.wording import format_short
from roundoff.runs import Event, Finding, Run
from roundoff.runs.records.event import StepOp, ops_of

_SATURATED = 0.97
"""If the squares of the weights add up to this, nearly all weight is on one position."""
_EMPTY = 0.8
"""If this share of the positions has a weight of exactly 0, their logits are far below the largest."""
_MASKED = -6e4
"""Logits below this are those of a mask."""
_MIN_POSITIONS = 3
_PRODUCTS = ("bmm", "mm", "baddbmm", "addmm")
_PASSING = frozenset({"native_dropout", "mul", "_to_copy", "clone", "bernoulli", "div"})
_FUSED = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")
_SPREAD_OF_LOGITS = 20.0
"""If logits differ by this much, judged by the sizes of their factors, the largest gets all the weight."""


@rule(
    Code(
        name="saturated-softmax",
        means="From the start, each row of an attention puts all its weight on one position. No gradient flows back "
        "through such a softmax.",
        fix="Divide the logits by the square root of the head size, use smaller initial values for queries and keys, "
        "or normalize them.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=940,
    checks="attention that puts all its weight on one position",
    needs=[
        needs.recorded_steps,
        needs.some(
            lambda run: any(
                _has_attention(events, step, rank) for step, events in recorded_steps(run) for rank in run.ranks
            ),
            "no attention was recorded",
        ),
    ],
)
@on_each_rank
def saturated_softmaxes(run: Run, rank: int) -> list[Finding]:
    """Find the first attention of each rank whose weights are all 0 or 1 in a recorded step."""
    found: list[Finding] = []
    for step, events in recorded_steps(run):
        if not _has_attention(events, step, rank):
            continue
        flow = Flow(ops_of(events.iter_events(step=step, rank=rank, phase="forward")))
        found.extend(_weights_in_one_place(flow))
        found.extend(_fused_in_one_place(flow))
    return sorted(found, key=lambda finding: finding.step or 0)


def _has_attention(run: Run, step: int, rank: int) -> bool:
    names = op_names(run, step=step, rank=rank, phase="forward")
    return any("_softmax" in name or "attention" in name for name in names)


def _weights_in_one_place(flow: Flow) -> Iterator[Finding]:
    for op in flow.ops:
        is_softmax = op.bare.endswith("_softmax") and "log" not in op.bare and op.outputs and op.inputs
        if is_softmax and _is_saturated(op) and flow.first_reader(op.outputs[0], wanted=_multiplies, passing=_PASSING):
            weights, num_places = op.outputs[0], _num_places(op.outputs[0])
            entropy = max(-math.log(_sum_of_squares(weights)), 0.0)
            yield _finding(
                weights,
                f"the entropy of its weights is {format_short(entropy)}, while {num_places} equal weights have "
                f"{format_short(math.log(num_places))}: its logits reach {format_short(op.inputs[0].absmax)}, and the "
                "largest gets all the weight",
                {"entropy": entropy, "entropy_of_equal_weights": math.log(num_places)},
            )


def _multiplies(op: StepOp, _: Event) -> bool:
    return op.bare in _PRODUCTS


def _is_saturated(op: StepOp) -> bool:
    """Say whether nearly all weight of each row is on one position, or most unmasked positions have none at all.

    The second happens if keys repeat: they share the weight.
    """
    logits, weights = op.inputs[0], op.outputs[0]
    num_places, num_open = _num_places(weights), weights.num_elements - logits.num_neginf
    num_rows = weights.num_elements // max(num_places, 1)
    if weights.num_nonfinite or num_places < _MIN_POSITIONS or num_open < 2 * num_rows:
        return False
    hides_a_mask = logits.min < _MASKED
    num_empty = 0 if hides_a_mask else weights.num_zero - logits.num_neginf
    return _sum_of_squares(weights) > _SATURATED or num_empty > _EMPTY * (num_open - num_rows)


def _sum_of_squares(weights: Event) -> float:
    """Return the mean over rows of the sum of squares: 1 for weight on one position, 1/n for n equal weights."""
    return min(weights.l2**2 / weights.sum_abs, 1.0) if weights.sum_abs else 1.0


def _num_places(weights: Event) -> int:
    """Return the length of the rows that add up to 1."""
    return round(1 / weights.mean) if weights.mean > 0 else 0


def _fused_in_one_place(flow: Flow) -> Iterator[Finding]:
    """Judge fused attention by its results, because its weights are not visible.

    The sizes of queries and keys show how far apart the logits are, the log-sum-exp shows that the largest dominates,
    and results as large as the values show that nothing was averaged.
    """
    for op in flow.ops:
        if not op.bare.startswith(_FUSED) or len(op.inputs) < 3 or len(op.outputs) < 2 or not op.outputs[0].shape:
            continue
        q, k, v = op.inputs[:3]
        mixed, sums = op.outputs[:2]
        num_places = k.shape[-2]
        size_q, size_k, size_v, size_mixed = map(root_mean_square, (q, k, v, mixed))
        spread = size_q * size_k
        is_averaged = size_mixed < 0.9 * size_v
        is_high = sums.mean > math.log(num_places) + _SPREAD_OF_LOGITS / 2
        if spread > _SPREAD_OF_LOGITS and is_high and not is_averaged and num_places >= _MIN_POSITIONS:
            yield _finding(
                mixed,
                f"queries of size {format_short(size_q)} and keys of size {format_short(size_k)} give logits that "
                f"differ by about {format_short(spread)}, so the largest gets all the weight: the results are as large "
                f"as the values, not averaged ({format_short(size_mixed)} and {format_short(size_v)})",
                {"spread_of_logits": spread, "mean_log_sum_exp": sums.mean},
            )


def _finding(event: Event, why: str, measured: dict[str, float]) -> Finding:
    return error(
        rule="saturated-softmax",
        confidence=0.9,
        **place_of(event),
        title="attention is saturated: each row puts all its weight on one position",
        why=f"{why}. No gradient flows back through such a softmax",
        fix="divide the logits by the square root of the head size, use smaller initial weights for queries and "
        "keys, or normalize both before their product",
        evidence=({**measured},),
    )
