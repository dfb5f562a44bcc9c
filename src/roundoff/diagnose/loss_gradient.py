"""What reaches the criterion from the end of the graph: the factor that the loop put on its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roundoff.runs import Event, Run

_CHAIN = ("input0", "output0")
"""The gradient that comes in and the one that goes out; other inputs of an op are saved values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGradient:
    """The derivative of what backward started from with respect to the criterion's value."""

    factor: float
    """1 for a plain loss, 1/8 for one divided by eight, negative where the sign is flipped."""
    op: str
    """The first op of backward that is no scalar any more, such as aten.nll_loss_backward."""


def loss_gradient(events: Sequence[Event]) -> LossGradient | None:
    """Follow the scalars at the beginning of one microbatch's backward; None if it was not recorded."""
    factor = 1.0
    for event in events:
        if event.phase != "backward":
            continue
        if event.num_elements != 1 and event.output.startswith("output"):
            return LossGradient(factor=factor, op=event.op)
        if event.num_elements == 1 and event.output in _CHAIN and "float" in event.dtype:
            factor = event.min
    return None


def microbatches(run: Run, rank: int, step: int) -> list[list[Event]]:
    """Return the recorded events of a step, microbatch by microbatch, in the order in which they happened."""
    found: dict[int, list[Event]] = {}
    for event in run.iter_events(step=step, rank=rank):
        if event.phase in ("forward", "backward"):
            found.setdefault(event.microbatch, []).append(event)
    return [sorted(found[number], key=lambda event: event.order) for number in sorted(found)]
