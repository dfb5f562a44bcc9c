"""The ops of one step, put together again from the events they left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from roundoff.runs import Event

NAMED = ("input", "parameter", "gradient")
"""What takes the place of an op's name for tensors that no op computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOp:
    """One call of an op: what went in and what came out, as far as it was recorded."""

    inputs: list[Event] = field(default_factory=list)
    outputs: list[Event] = field(default_factory=list)

    @property
    def first(self) -> Event:
        """An event that tells op, phase and microbatch."""
        return (self.outputs or self.inputs)[0]

    @property
    def bare(self) -> str:
        """The op without namespace and in-place mark: `addcdiv`."""
        return bare_name(self.first.op)

    def inputs_of(self, output: Event) -> Sequence[Event]:
        """Return what went into one result: all inputs, or for a list op those at the same place in their lists."""
        num_lists = len(self.inputs) // max(1, len(self.outputs))
        if not self.bare.startswith("_foreach") or not num_lists:
            return self.inputs
        place, length = self.outputs.index(output), len(self.outputs)
        return [x for i, x in enumerate(self.inputs) if i >= num_lists * length or i % length == place]


def bare_name(op: str) -> str:
    """Return the op without namespace and in-place mark.

    >>> bare_name("aten.addcdiv_"), bare_name("c10d.allreduce_")
    ('addcdiv', 'allreduce')
    """
    return op.partition(".")[2].rstrip("_")


def ops_of(events: Iterable[Event]) -> list[StepOp]:
    """Group the events of one rank's step into ops, in the order they ran; named tensors are ops without inputs.

    Each result of a list op may have a site of its own, so that neighbours in time are what counts, not the key.
    """
    found: list[StepOp] = []
    for event in sorted(events, key=lambda event: event.order):
        is_input = event.output.startswith("input")
        if not found or not _belongs(found[-1], event, is_input=is_input):
            found.append(StepOp())
        (found[-1].inputs if is_input else found[-1].outputs).append(event)
    return found


def _belongs(op: StepOp, event: Event, *, is_input: bool) -> bool:
    first = (op.inputs or op.outputs)[0]
    same = (first.op, first.nth, first.phase, first.microbatch) == (event.op, event.nth, event.phase, event.microbatch)
    if not same:
        return False
    if is_input:
        return not op.outputs and event.output != "input0"
    return event.output not in {other.output for other in op.outputs[:1]}
