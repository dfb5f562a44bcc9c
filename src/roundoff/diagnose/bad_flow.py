"""The way of the bad values through one step: where they began, and which results carried them on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundoff.diagnose.flow import Flow
from roundoff.diagnose.origin import OriginPlace, find_origin
from roundoff.diagnose.provenance import Provenance
from roundoff.runs import Event, Run
from roundoff.runs.step_ops import StepOp, ops_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFlow:
    """Which results of a step hold NaN or infinity because of its origin; results are told by their `order`."""

    origin: OriginPlace | None
    """None where no bad value reaches a loss, a gradient, a weight or a norm's statistics."""
    start: int | None
    """The result of the origin; where the bad value came from outside, that of the first op that reads it."""
    came_from: Mapping[int, int]
    """For each result that holds bad values of the origin: the result it has them from."""
    others: frozenset[int]
    """Results that are bad for another reason. What a mask wrote is not among them."""


def bad_flow(run: Run, *, step: int, rank: int = 0) -> BadFlow | None:
    """Follow the bad values of a recorded or replayed step from op to op; None if it has none but those of masks."""
    ops = ops_of(event for event in run.iter_events(step=step, rank=rank) if event.phase != "eval")
    provenance = Provenance(ops)
    if not provenance.roots:
        return None
    origin = find_origin(run, step=step, rank=rank)
    bad = [event for op in ops for event in op.outputs if provenance.roots_of(event)]
    if origin is None:
        return BadFlow(origin=None, start=None, came_from={}, others=frozenset(event.order for event in bad))
    start = _start(ops, origin)
    carriers = [event for event in bad if origin.order in provenance.roots_of(event) and event.order != start]
    ours = {start, *(event.order for event in carriers)}
    return BadFlow(
        origin=origin,
        start=start,
        came_from=_came_from(ops, carriers, start),
        others=frozenset(event.order for event in bad if event.order not in ours),
    )


def _start(ops: Sequence[StepOp], origin: OriginPlace) -> int:
    """Return the order of the origin's result; a bad value from outside is first seen going into an op."""
    for op in ops:
        if any(event.order == origin.order for event in op.inputs):
            return op.first.order
    return origin.order


def _came_from(ops: Sequence[StepOp], carriers: Sequence[Event], start: int) -> dict[int, int]:
    """Return for each carrier the latest of the others that it reads; or, where views hide that, the one before it."""
    flow, known, previous = Flow(ops), {start}, start
    op_of = {event.order: op for op in ops for event in op.outputs}
    found: dict[int, int] = {}
    for event in carriers:
        read = [_made_by(flow, x, known) for x in op_of[event.order].inputs_of(event) if x.num_nonfinite]
        found[event.order] = max((order for order in read if order is not None), default=previous)
        known.add(event.order)
        previous = event.order
    return found


def _made_by(flow: Flow, tensor: Event, known: set[int]) -> int | None:
    maker = flow.maker_of(tensor)
    made = [event.order for event in maker.outputs if event.order in known] if maker is not None else []
    return made[0] if made else None
