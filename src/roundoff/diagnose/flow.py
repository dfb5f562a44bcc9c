"""The recorded steps of a run; which op computed a tensor of a step, and which ops read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from roundoff.runs import Event, Run
from roundoff.runs.records.step_ops import StepOp


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
    """The ops of one step, linked where one reads the result of another.

    Tensors are identified by their bits: a view that keeps the order of its elements is followed, a transposed or
    sliced one is not. Of several equal tensors the latest counts.
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
        """Return the latest op before this event that computed the tensor; None if it came from elsewhere."""
        made = [op for op in self._makers[event.hash, event.num_elements] if op.first.order < event.order]
        return made[-1] if made else None

    def readers_of(self, event: Event) -> list[StepOp]:
        """Return the ops after this event that read the tensor, in order."""
        return [op for op in self._readers[event.hash, event.num_elements] if op.first.order > event.order]

    def first_reader(
        self, event: Event, *, wanted: Callable[[StepOp, Event], bool], passing: frozenset[str], within: int = 6
    ) -> StepOp | None:
        """Return the first wanted op that a tensor reaches through passing ops, or None.

        Args:
            event: the tensor.
            wanted: says whether an op, with the tensor it reads, is wanted.
            passing: bare names of ops whose results are followed.
            within: the largest number of ops on the way.
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
