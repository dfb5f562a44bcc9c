"""Where each NaN and infinity of a step came from, which of them matter, how far they spread, and along which path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from roundoff.diagnose.step_flow import Flow
from roundoff.runs import Event, Run
from roundoff.runs.records.event import NAMED, StepOp, ops_of

MASKS = frozenset(
    {
        "masked_fill", "where", "full", "full_like", "fill", "index_fill", "scalar_tensor", "new_full",
        "constant_pad_nd", "masked_scatter",
    }
)  # fmt: skip
"""Ops that write -inf on purpose."""

RootKind: TypeAlias = Literal["op", "input", "parameter", "state", "collective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Where a bad value entered the step."""

    kind: RootKind
    """op: computed from good values. input: contained in the batch. parameter, state (buffers, optimizer state,
    uninitialized memory): there when the step began. collective: from another rank."""
    bad: Event
    """The bad result of the op; for the other kinds, the tensor as it was first seen."""
    inputs: tuple[Event, ...] = ()


Roots: TypeAlias = frozenset[int]
"""Orders of the `bad` events of roots."""

NO_ROOTS: Roots = frozenset()


class Provenance:
    """Follows bad values through the ops of one step, by the hashes of the tensors that hold them.

    The -inf of a mask is harmless until an op turns it into NaN or +inf. Views leave no events: a tensor with an
    unknown hash is treated as a view of the latest result that could contain it.
    """

    def __init__(self, ops: Sequence[StepOp]) -> None:
        self.roots: dict[int, Root] = {}
        self._known: list[tuple[Event, Roots]] = []
        self._by_order: dict[int, Roots] = {}
        self._by_hash: dict[tuple[int, int], Roots] = {}
        self._has_inputs = any(op.inputs for op in ops)
        self._last: Roots = NO_ROOTS
        for op in ops:
            self._follow(op)

    def roots_of(self, event: Event) -> Roots:
        """Return the roots of an event of these ops; empty if it is finite or harmless."""
        return self._by_order.get(event.order, NO_ROOTS)

    def _look_up(self, event: Event) -> Roots | None:
        """Return the roots of the latest tensor that this one equals or could be a view of; None if it is unknown."""
        exact = self._by_hash.get((event.hash, event.num_elements))
        if exact is not None:
            return exact
        return next((roots for known, roots in reversed(self._known) if _could_hold(known, event)), None)

    def _follow(self, op: StepOp) -> None:
        for x in op.inputs:
            if x.num_nonfinite:
                self._by_order[x.order] = self._roots_of_input(x)
        for output in op.outputs:
            if output.num_nonfinite:
                roots = self._roots_of_named(output) if output.op in NAMED else self._roots_of_result(op, output)
                self._known.append((output, roots))
                self._by_order[output.order] = roots
                self._by_hash[output.hash, output.num_elements] = roots

    def _roots_of_named(self, event: Event) -> Roots:
        """Return the roots of an input or parameter: it came from outside, unless an op of this step computed it."""
        known = self._look_up(event)
        if known is not None:
            return known
        if event.op == "gradient" or not _is_certain(event):
            return NO_ROOTS
        return self._new_root("input" if event.op == "input" else "parameter", event)

    def _roots_of_result(self, op: StepOp, output: Event) -> Roots:
        inputs = op.inputs_of(output)
        inherited = NO_ROOTS.union(*(self.roots_of(x) for x in inputs)) if self._has_inputs else self._last
        if self._has_inputs and not inputs:  # a recorded view contains what is known already
            inherited = self._by_hash.get((output.hash, output.num_elements), NO_ROOTS)
        if inherited:
            return inherited
        is_mask = op.bare in MASKS or any(x.num_neginf for x in inputs)
        if is_mask and not _is_certain(output):
            return NO_ROOTS
        kind: RootKind = "collective" if output.op.startswith("c10d.") else "op"
        self._last = self._new_root(kind, output, inputs)
        return self._last

    def _roots_of_input(self, event: Event) -> Roots:
        known = self._look_up(event)
        if known is not None:
            return known
        if not _is_certain(event):
            return NO_ROOTS
        is_data = event.site == "<loop>" and event.parameter is None
        roots = self._new_root("input" if is_data else "state", event)
        self._by_hash[event.hash, event.num_elements] = roots
        return roots

    def _new_root(self, kind: RootKind, bad: Event, inputs: Sequence[Event] = ()) -> Roots:
        self.roots[bad.order] = Root(kind=kind, bad=bad, inputs=tuple(inputs))
        return frozenset({bad.order})


def _is_certain(event: Event) -> bool:
    """Say whether a tensor holds NaN or +inf; -inf alone may be a mask."""
    return event.num_nan > 0 or event.num_posinf > 0


def _could_hold(known: Event, view: Event) -> bool:
    """Say whether a tensor can be a view (transposed, sliced, repeated) of a known one, by counts and extremes."""
    if known.dtype != view.dtype:
        return False
    pairs = [(known.num_nan, view.num_nan), (known.num_posinf, view.num_posinf), (known.num_neginf, view.num_neginf)]
    if any(there > 0 and not here for here, there in pairs):
        return False
    if known.num_elements >= view.num_elements and any(there > here for here, there in pairs):
        return False
    return not (view.min < known.min or view.max > known.max)


_SOFTMAXES = ("softmax", "logsumexp", "scaled_dot_product", "attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """How far the bad values of a step spread."""

    reaches_loss: bool
    num_bad_gradients: int
    num_gradients: int
    num_bad_weights: int
    num_weights: int
    reaches_statistics: bool
    """Whether the running statistics of a normalization layer contain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginPlace:
    """The first op of a step that made a bad value from good ones and whose result matters, or how else it came in."""

    kind: RootKind
    """op, or: input, parameter, state, collective for values that were bad before any op of this step and rank."""
    bad: Event
    """The bad result; for kinds other than op the tensor as it was first seen."""
    inputs: tuple[Event, ...]
    is_masked: bool
    """Whether the op is a softmax or attention over a fully masked row."""
    has_inputs: bool
    """Whether inputs were recorded; without them the first op with a bad result is only probably the origin."""
    batch_size: int | None
    """The first dimension of the first input of the step's models."""
    liveness: Liveness

    @property
    def phase(self) -> str:
        """forward, backward or optimizer."""
        return self.bad.phase

    @property
    def site(self) -> str:
        """The part of the model."""
        return self.bad.site

    @property
    def op(self) -> str:
        """The op without its number, `aten.bmm`."""
        return self.bad.op

    @property
    def microbatch(self) -> int:
        """The nth backward inside the step."""
        return self.bad.microbatch

    @property
    def order(self) -> int:
        """Its place within the step."""
        return self.bad.order


def find_origin(run: Run, *, step: int, rank: int = 0) -> OriginPlace | None:
    """Return where the first bad value came from that reaches loss, gradients, weights or statistics, or None.

    Works on the events of one recorded or replayed step. The -inf of a mask is not an error, and neither are values
    that are masked or divided away later.
    """
    ops = ops_of(event for event in run.iter_events(step=step, rank=rank) if event.phase != "eval")
    provenance = Provenance(ops)
    if not provenance.roots:
        return None
    sinks = _Sinks(ops, provenance)
    live = sinks.roots_to_blame(provenance.roots)
    return _place(provenance.roots[live[0]], ops, sinks.liveness()) if live else None


def roots_without_effect(ops: Sequence[StepOp], provenance: Provenance) -> list[Root]:
    """Return, in order, the roots whose bad values reach neither loss nor gradients, weights or statistics."""
    live = _Sinks(ops, provenance).roots_to_blame(provenance.roots)
    return [provenance.roots[order] for order in sorted(provenance.roots) if order not in live]


def _place(root: Root, ops: Sequence[StepOp], liveness: Liveness) -> OriginPlace:
    is_softmax = any(word in root.bad.op for word in _SOFTMAXES)
    sizes = [op.first.shape[0] for op in ops if op.first.op == "input" and op.first.shape]
    return OriginPlace(
        kind=root.kind,
        bad=root.bad,
        inputs=root.inputs,
        is_masked=is_softmax and any(x.num_neginf for x in root.inputs),
        has_inputs=any(op.inputs for op in ops),
        batch_size=sizes[0] if sizes else None,
        liveness=liveness,
    )


class _Sinks:
    """The tensors of a step that matter, with the roots of those that are bad."""

    def __init__(self, ops: Sequence[StepOp], provenance: Provenance) -> None:
        self._provenance = provenance
        self._losses = losses_of(ops)
        self._gradients = [op.first for op in ops if op.first.op == "gradient"]
        self._weights = _new_weights(ops)
        norms = [op for op in ops if "batch_norm" in op.bare and "backward" not in op.bare]
        self._statistics = [event for op in norms for event in op.outputs[1:3]]

    def roots_to_blame(self, roots: Iterable[int]) -> list[int]:
        """Return, in order, those of the roots because of which anything that matters is bad."""
        everything = (*self._losses, *self._gradients, *self._weights, *self._statistics)
        to_blame = NO_ROOTS.union(*(self._provenance.roots_of(sink) for sink in everything))
        return sorted(to_blame.intersection(roots))

    def liveness(self) -> Liveness:
        """Count what is bad; one cause may have several roots, such as log(0) and, in backward, 1/0."""
        return Liveness(
            reaches_loss=self._num_bad(self._losses) > 0,
            num_bad_gradients=self._num_bad(self._gradients),
            num_gradients=len(self._gradients),
            num_bad_weights=self._num_bad(self._weights),
            num_weights=len(self._weights),
            reaches_statistics=self._num_bad(self._statistics) > 0,
        )

    def _num_bad(self, sinks: Sequence[Event]) -> int:
        return sum(bool(self._provenance.roots_of(sink)) for sink in sinks)


def losses_of(ops: Sequence[StepOp]) -> list[Event]:
    """Return the scalars that backward started from: its first op is a ones_like of each."""
    found: list[Event] = []
    last_scalar: Event | None = None
    start: Event | None = None
    was_forward = False
    for op in ops:
        event = op.first
        if event.phase == "backward" and event.op not in NAMED and was_forward:
            loss = start or last_scalar
            found.extend([loss] if loss is not None else [])
            start = last_scalar = None
        was_forward = event.phase == "forward" or (was_forward and event.phase != "backward")
        if event.phase == "forward" and event.num_elements == 1 and event.op not in NAMED:
            start = op.inputs[0] if op.bare == "ones_like" and op.inputs else start
            last_scalar = event if "float" in event.dtype and op.bare != "ones_like" else last_scalar
    return found if found or last_scalar is None else [last_scalar]


def _new_weights(ops: Sequence[StepOp]) -> list[Event]:
    """Return, for each parameter, the last thing written to a tensor of its shape by the optimizer."""
    shapes = {op.first.parameter: op.first.shape for op in ops if op.first.op == "parameter"}
    found: dict[str, Event] = {}
    in_step = False
    for op in ops:
        in_step = in_step or op.first.op == "gradient"
        if in_step and op.first.phase == "optimizer" and (op.first.op.endswith("_") or "_fused" in op.first.op):
            for event in op.outputs:
                if event.parameter is not None and event.shape == shapes.get(event.parameter, event.shape):
                    found[event.parameter] = event
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFlow:
    """Which results of a step hold NaN or infinity because of its origin; results are identified by their `order`."""

    origin: OriginPlace | None
    """None if no bad value reaches a loss, a gradient, a weight or running statistics."""
    start: int | None
    """The result of the origin; if the bad value came from outside, that of the first op that reads it."""
    came_from: Mapping[int, int]
    """For each result with bad values of the origin, the result they came from."""
    others: frozenset[int]
    """Results that are bad for another reason, without those that a mask wrote."""


def bad_flow(run: Run, *, step: int, rank: int = 0) -> BadFlow | None:
    """Follow the bad values of a recorded or replayed step from op to op; None if there are only those of masks."""
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
    from_origin = {start, *(event.order for event in carriers)}
    return BadFlow(
        origin=origin,
        start=start,
        came_from=_came_from(ops, carriers, start),
        others=frozenset(event.order for event in bad if event.order not in from_origin),
    )


def _start(ops: Sequence[StepOp], origin: OriginPlace) -> int:
    """Return the order of the origin's result; a bad value from outside is first seen as the input of an op."""
    for op in ops:
        if any(event.order == origin.order for event in op.inputs):
            return op.first.order
    return origin.order


def _came_from(ops: Sequence[StepOp], carriers: Sequence[Event], start: int) -> dict[int, int]:
    """Return for each carrier the latest other carrier that it reads; or the one before it, if views hide that."""
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
