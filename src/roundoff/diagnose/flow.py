"""Which op made a tensor of a recorded step, and which ops read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from roundoff.runs import Event, Run
from roundoff.runs.records.step_ops import StepOp

# == The steps of a run whose ops can be looked at.


def recorded_steps(run: Run) -> Iterator[tuple[int, Run]]:
    """Yield each step that was recorded or replayed, in order, with the run that holds its events."""
    recorded, replayed = set(run.steps), set(run.replayed_steps)
    for step in sorted(recorded | replayed):
        replay = run.replay(step) if step in replayed else None
        if replay is not None and step in replay.steps:
            yield step, replay
        elif step in recorded:
            yield step, run


class Flow:
    """The ops of one step, joined where one reads what another made.

    Tensors are known by their bits: what goes through a view that keeps the order of its elements is followed, what
    is transposed or sliced is not. Of several equal tensors the latest counts.
    """

    def __init__(self, ops: Sequence[StepOp]) -> None:
        self.ops = ops
        self._makers: dict[tuple[int, int], list[StepOp]] = defaultdict(list)
        self._readers: dict[tuple[int, int], list[StepOp]] = defaultdict(list)
        for op in ops:
            for event in op.outputs:
                self._makers[event.hash, event.num_elements].append(op)
            for event in op.inputs:
                self._readers[event.hash, event.num_elements].append(op)

    def maker_of(self, event: Event) -> StepOp | None:
        """Return the latest op before this event that made the tensor; None if it came from elsewhere."""
        made = [op for op in self._makers[event.hash, event.num_elements] if op.first.order < event.order]
        return made[-1] if made else None

    def readers_of(self, event: Event) -> list[StepOp]:
        """Return the ops after this event that read the tensor, in order."""
        return [op for op in self._readers[event.hash, event.num_elements] if op.first.order > event.order]

    def first_reader(
        self, event: Event, *, wanted: Callable[[StepOp, Event], bool], passing: frozenset[str], within: int = 6
    ) -> StepOp | None:
        """Return the first op that is wanted among those that a tensor reaches by way of the passing ones, or None.

        Args:
            event: the tensor.
            wanted: is asked about an op and the tensor it reads.
            passing: ops, by their bare names, whose results are followed, too.
            within: so many ops in a row.
        """
        reached = [event]
        for _ in range(within):
            following: list[Event] = []
            for tensor in reached:
                for op in self.readers_of(tensor):
                    if wanted(op, tensor):
                        return op
                    if op.bare in passing:
                        following.extend(op.outputs[:1])
            reached = following
        return None


def mean_magnitude(event: Event) -> float:
    """Return the mean of the absolute values of a tensor's finite elements."""
    return event.sum_abs / max(event.num_elements - event.num_nonfinite, 1)
