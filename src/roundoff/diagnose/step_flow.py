"""The ops of recorded steps: how tensors flow between them, and the layers they belong to."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from roundoff.diagnose.rule import error
from roundoff.runs import Event, Finding, JsonValue, ParameterFacts, Run
from roundoff.runs.records.event import NAMED, StepOp, bare_name, ops_of

_MAX_OPS_BETWEEN = 6
"""A tensor is followed through at most this many ops."""


def recorded_steps(run: Run) -> Iterator[tuple[int, Run]]:
    """Yield each step that was recorded or replayed, in order, with the run that holds its events."""
    recorded, replayed = set(run.steps), set(run.replayed_steps)
    for step in sorted(recorded | replayed):
        replay = run.replay(step) if step in replayed else None
        if replay is not None and step in replay.steps:
            yield step, replay
        elif step in recorded:
            yield step, run


def op_names(run: Run, *, step: int | None = None, rank: int | None = None, phase: str | None = None) -> set[str]:
    """Return the bare names of the recorded ops."""
    return {bare_name(op) for op in run.events(step=step, rank=rank, phase=phase, columns=["op"])["op"].unique()}


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
        self, event: Event, *, wanted: Callable[[StepOp, Event], bool], passing: frozenset[str]
    ) -> StepOp | None:
        """Return the first wanted op that a tensor reaches through ops with the bare names in `passing`, or None."""
        reached = [event]
        for _ in range(_MAX_OPS_BETWEEN):
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


PRODUCTS = frozenset({"mm", "addmm", "convolution", "linear", "mkldnn_linear"})
"""Ops that multiply by a weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A product with a weight: the op that computes it and the weight."""

    op: StepOp
    weight: ParameterFacts

    @property
    def site(self) -> str:
        """The module it belongs to."""
        return self.op.first.site

    @property
    def result(self) -> Event:
        """The output."""
        return self.op.outputs[0]


def finding_at(
    layer: Layer,
    rule: str,
    *,
    title: str,
    why: str,
    fix: str,
    evidence: tuple[JsonValue, ...],
    confidence: float = 0.95,
    phase: str = "forward",
) -> Finding:
    """Return an error about a layer in the first step, located at the layer; a finding in backward names no op."""
    return error(
        rule=rule,
        confidence=confidence,
        step=0,
        phase=phase,
        site=layer.site,
        op=layer.result.op_name if phase == "forward" else None,
        parameter=layer.weight.name,
        source=layer.result.source,
        title=title,
        why=why,
        fix=fix,
        evidence=evidence,
    )


def forward_ops(run: Run, *, step: int = 0) -> list[StepOp]:
    """Return the ops of the first forward of a recorded step, in order; empty if the step was not recorded."""
    events = run.iter_events(step=step, phase="forward", rank=first_rank(run))
    return [op for op in ops_of(e for e in events if e.microbatch == 0) if op.first.op not in NAMED and op.outputs]


def layers_of(run: Run, ops: Sequence[StepOp]) -> list[Layer]:
    """Return the layers that the ops belong to, each once, in order."""
    looks = run.structures(rank=first_rank(run))
    if not looks:
        return []
    weights = {p.site: p for p in reversed(looks[0].parameters) if len(p.shape) >= 2}
    found: dict[str, Layer] = {}
    for op in ops:
        site = op.first.site
        if op.bare in PRODUCTS and site in weights:
            found.setdefault(site, Layer(op=op, weight=weights[site]))
    return list(found.values())


def first_rank(run: Run) -> int:
    """Return the rank to look at if all ranks are alike: the first that left files."""
    return min(run.ranks, default=0)


def root_mean_square(event: Event) -> float:
    """Return the root mean square of a tensor's elements."""
    return event.l2 / math.sqrt(max(event.num_elements, 1))
