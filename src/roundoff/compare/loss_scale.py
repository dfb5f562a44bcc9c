"""Takes the loss scale out of a candidate's gradients, so that they can be held against those of the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from roundoff.compare.align import Alignment, is_passing_on
from roundoff.compare.distance import divided
from roundoff.runs import Event
from roundoff.runs.step_ops import StepOp


def without_loss_scale(alignment: Alignment, ratio: float) -> Alignment:
    """Return the lined-up ops with the candidate's gradients divided by `ratio`, its loss scale over the reference's.

    A backward pass also reads tensors of the forward, which carry no scale: what is nearer to its counterpart in the
    reference as it is, is left so.
    """
    if ratio == 1:
        return alignment
    pairs = ((a, _unscaled(a, b, ratio) if _may_carry_scale(a) else b) for a, b in alignment.pairs)
    return replace(alignment, pairs=tuple(pairs))


def _may_carry_scale(op: StepOp) -> bool:
    """Say whether an op is one of a backward pass, or a copy of the loss."""
    return op.first.phase == "backward" or (is_passing_on(op) and op.first.num_elements == 1)


def _unscaled(reference: StepOp, candidate: StepOp, ratio: float) -> StepOp:
    return StepOp(
        inputs=_each(reference.inputs, candidate.inputs, ratio),
        outputs=_each(reference.outputs, candidate.outputs, ratio),
    )


def _each(reference: Sequence[Event], candidate: Sequence[Event], ratio: float) -> list[Event]:
    known = {event.output: event for event in reference}
    return [divided(b, ratio) if _carries_scale(known.get(b.output), b, ratio) else b for b in candidate]


def _carries_scale(a: Event | None, b: Event, ratio: float) -> bool:
    if a is None or not a.l2 or not b.l2:
        return False
    off = math.log(b.l2) - math.log(a.l2)
    return abs(off - math.log(ratio)) < abs(off)
