"""Compares one step of two runs: each result against what its inputs and formats explain, up to the first beyond it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from roundoff.compare.runs.alignment import Alignment, is_passing_on, op_word
from roundoff.compare.runs.divergence import Cause, ComparedTensor, Divergence, Side
from roundoff.compare.runs.event_distance import (
    NOT_COMPARABLE,
    Distance,
    TensorKey,
    WholeTensors,
    distances,
    num_channels,
    tensor_key,
)
from roundoff.compare.runs.expected_distance import (
    GROWTH,
    RANDOM,
    ResultKey,
    allowed_by,
    expected_distance,
    roundings,
    unit_of,
)
from roundoff.runs import Event, shape_to_text
from roundoff.runs.records.event import LOOP, NAMED, StepOp

UNKNOWN_TERMS = 4096
"""A tensor that no aligned op made may be a sum of this many terms."""
_WEIGHTED_LOSSES = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy_loss", "multi_margin_loss",
    "multilabel_margin_loss", "nll_loss", "nll_loss2d", "nll_loss2d_forward", "nll_loss_forward", "nll_loss_nd",
)  # fmt: skip
SAME_TENSOR = 4.0
"""Two estimates of one distance, for a tensor and its transpose, may differ by this factor."""
UNLIKE = replace(NOT_COMPARABLE, absolute=math.inf, relative=math.inf)
"""The distance of tensors whose shapes differ and should not."""
START_VALUES = ("parameter", "buffer")
HEALED = 12
"""A difference is ignored if this many later results elsewhere agree again."""

OpPair = tuple[StepOp, StepOp]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """The result of comparing one step."""

    rows: tuple[ComparedTensor, ...]
    divergence: Divergence | None


@dataclass(slots=True, kw_only=True)
class StepWalk:
    """One pass over the aligned ops of one step of one rank, in the order in which the reference ran."""

    alignment: Alignment
    coarsest_unit: float
    """The rounding of the narrowest format that either side emulates in wider storage."""
    is_first: bool
    """Whether training began with this step, so that its parameters are start values."""
    spread: Mapping[ResultKey, float]
    """How far results of the reference move by rounding alone, as `spread_of` returns it."""
    whole: WholeTensors | None
    """The tensors themselves, if both runs kept them."""
    updated: Mapping[str, float] | None
    """How far apart each parameter was after the step before, if that was compared."""
    has_same_batch: bool
    """Whether shapes should agree."""
    _distances: dict[tuple[int, int], Distance] = field(init=False)
    _made_by_one_side: dict[tuple[str, int, str], StepOp] = field(init=False)
    _shared: set[tuple[Side, int, str]] = field(init=False)
    _noise: float = 0.0
    """The largest distance so far."""
    _made: dict[TensorKey, float] = field(default_factory=dict)
    """The distances of the tensors so far."""

    def __post_init__(self) -> None:
        self._distances = _all_distances(self.alignment.pairs, self.whole)
        self._made_by_one_side = _made_by(self.alignment)
        self._shared = _made_on_both(self.alignment)

    def compare(self) -> StepComparison:
        """Find the first op that introduces a difference."""
        rows: list[ComparedTensor] = []
        found: list[tuple[OpPair, int, int, Divergence]] = []
        for pair in self.alignment.pairs:
            start = len(rows)
            divergence = self._look_at(pair, rows)
            if divergence is not None:
                found.append((pair, start, len(rows), divergence))
        for pair, start, end, divergence in found:
            if not _heals(divergence, rows[end:]):
                return StepComparison(rows=tuple(rows), divergence=self._count(divergence, pair, rows, start, end))
        return StepComparison(rows=tuple(rows), divergence=None)

    def _count(
        self, found: Divergence, pair: OpPair, rows: Sequence[ComparedTensor], start: int, end: int
    ) -> Divergence:
        """Count the results that differ before and after, and those before it of which nothing is known."""
        sides = zip((self.alignment.only_reference, self.alignment.only_candidate), pair, strict=True)
        alone = [op for ops, at in sides for op in ops if op.first.order < at.first.order and not is_passing_on(op)]
        if found.is_only_in is not None:
            own = next((place for place, op in enumerate(alone) if _is_named(op, found)), len(alone))
            alone = alone[:own]
        return replace(
            found,
            num_later=sum(not row.is_equal for row in rows[end:]),
            num_different_before=sum(not row.is_equal for row in rows[:start]),
            num_unjudged_before=len(alone) + sum(not row.is_judged for row in rows[:start]),
        )

    def _look_at(self, pair: OpPair, rows: list[ComparedTensor]) -> Divergence | None:
        reference, candidate = pair
        inputs = [(a, b, self._between(a, b)) for a, b in _pair_events(_read_by(reference), _read_by(candidate))]
        found: Divergence | None = None
        for a, b, distance in inputs:
            if self._is_unaccounted(a, b, distance):
                found = found or self._find_source(pair, a, b, distance)
        if found is None and self.has_same_batch:
            found = self._other_shape(pair, [d for _, _, d in inputs])
        for a, b in _pair_events(reference.outputs, candidate.outputs):
            distance = self._between(a, b)
            unit = self._unit(pair)
            given = [(_larger(x, y), d) for x, y, d in inputs]
            off = sum(d.relative for _, d in given if d.is_comparable)
            allowed = expected_distance(reference, _larger(a, b), inputs=given, unit=unit)
            excess = 0.0 if a.op in NAMED or _has_unknown_inputs(reference) else _excess(distance, allowed)
            is_judged = distance.is_equal or (distance.is_comparable and self._has_bound(reference, a, allowed))
            rows.append(_row(a, b, distance, inherited=off, excess=excess, is_judged=is_judged))
            if found is None and self._is_introduced(pair, a, distance, excess):
                found = _divergence(self._cause(reference), a, distance, inherited=off, unit=unit)
            elif found is None and _has_unknown_inputs(reference) and self._is_unaccounted(a, b, distance):
                found = self._find_source(pair, a, b, distance)
                found = found if found.is_only_in is not None else replace(found, knows_inputs=False)
            self._remember(a, distance)
        return found

    def _other_shape(self, pair: OpPair, inputs: Sequence[Distance]) -> Divergence | None:
        """Report that a result, or an input of it, has another shape, if that is not inherited."""
        if not inputs and pair[0].first.op not in NAMED:
            return None  # a constant
        results = _unlike(pair[0].outputs, pair[1].outputs)
        given = _unlike(_read_by(pair[0]), _read_by(pair[1]))
        unlike = given or results
        if not unlike or (given and results) or _is_workspace(unlike[0][0]):
            return None  # the same, or inherited
        a, b = unlike[0]
        if self._has_own_ops(a):
            maker = self._made_by_one_side.get(("candidate", *tensor_key(b))) if given else None
            return None if maker is None else self._find_source(pair, a, b, UNLIKE)
        found = _divergence(self._cause(pair[0]), a, UNLIKE, inherited=0.0, unit=self._unit(pair))
        return replace(found, shapes=(shape_to_text(a.shape), shape_to_text(b.shape)))

    def _has_own_ops(self, event: Event) -> bool:
        """Return whether a run has ops without counterpart in this site and phase, so that others may be mispaired."""
        alone = itertools.chain(self.alignment.only_reference, self.alignment.only_candidate)
        return any(
            (op.first.phase, op.first.site) == (event.phase, event.site) for op in alone if not is_passing_on(op)
        )

    def _is_introduced(self, pair: OpPair, a: Event, distance: Distance, excess: float) -> bool:
        if not distance.is_comparable or distance.is_equal or _has_unknown_inputs(pair[0]) or _is_workspace(a):
            return False
        if a.op in NAMED:
            return not distance.relative <= self._inherited_from_before(a) + roundings(self._unit(pair))
        return excess > 1 and not distance.relative <= allowed_by(self.spread, a, unit=self._unit(pair))

    def _has_bound(self, op: StepOp, a: Event, allowed: float) -> bool:
        """Return whether a difference of a result can be judged."""
        if a.op in START_VALUES or a.op == "input":
            return math.isfinite(self._inherited_from_before(a))
        return _has_unknown_inputs(op) or math.isfinite(allowed)

    def _inherited_from_before(self, a: Event) -> float:
        """Return how far apart a tensor may be that no op of the step makes where it is seen.

        What goes into a model or a loss may be the result of another model; parameters come from the step before.
        """
        if a.op == "input" and (known := self._made.get(tensor_key(a))) is not None:
            return SAME_TENSOR * known
        if a.op == "input" and ("reference", *tensor_key(a)) in self._made_by_one_side:
            return math.inf
        if self.is_first or a.op == "input":
            return 0.0
        if self.updated is None or a.op != "parameter":
            return math.inf
        return SAME_TENSOR * self.updated.get(a.parameter or a.site, 0.0)

    def _is_unaccounted(self, a: Event, b: Event, distance: Distance) -> bool:
        """Return whether a tensor differs by more than what it was made from."""
        if distance.is_equal or not distance.is_comparable or _is_workspace(a):
            return False
        unit = max(unit_of(a.dtype), unit_of(b.dtype), self.coarsest_unit if unit_of(a.dtype) else 0.0)
        known = self._made.get(tensor_key(a))
        inherited = GROWTH * self._noise if known is None else SAME_TENSOR * known
        allowed = inherited + roundings(unit, num_terms=UNKNOWN_TERMS if known is None else 1)
        return not distance.relative <= allowed

    def _find_source(self, pair: OpPair, a: Event, b: Event, distance: Distance) -> Divergence:
        """Name the op without counterpart that made an input different, or the input itself."""
        unit = self._unit(pair)
        sides: tuple[tuple[Side, Event], ...] = (("candidate", b), ("reference", a))
        for side, event in sides:
            maker = self._made_by_one_side.get((side, *tensor_key(event)))
            first = None if maker is None else self._first_of_its_kind(side, maker)
            if first is not None:
                output = (first.outputs or first.inputs)[0]
                found = _divergence(self._cause(first), output, distance, inherited=0.0, unit=unit)
                return replace(found, is_only_in=side, knows_inputs=bool(first.inputs) or first.first.op in NAMED)
        writer = self._written_in_forward(pair[0], a)
        if writer is not None:
            return replace(_divergence("forward", writer, distance, inherited=0.0, unit=unit), output=a.output)
        is_unmade = tensor_key(a) not in self._made and all(is_passing_on(op) for op in self.alignment.only_candidate)
        is_data = is_unmade and (a.site == LOOP or not unit_of(a.dtype)) and not _is_weight_of_loss(pair[0], a)
        return _divergence("data" if is_data else self._cause(pair[0]), a, distance, inherited=0.0, unit=unit)

    def _written_in_forward(self, op: StepOp, read: Event) -> Event | None:
        """Return the norm's result in the forward if its backward reads running statistics, which the forward wrote."""
        if not op_word(op).endswith("batch_norm_backward") or tensor_key(read) in self._made:
            return None
        outputs = (reference.outputs for reference, _ in self.alignment.pairs if _is_norm_of(reference, read))
        return next((found[0] for found in outputs if found), None)

    def _first_of_its_kind(self, side: Side, op: StepOp) -> StepOp | None:
        """Go back from an op without counterpart to the first such op whose inputs both sides have.

        None if there are only casts and copies in between.
        """
        seen = {id(op)}
        found = None if is_passing_on(op) else op
        while True:
            before = [self._made_by_one_side.get((side, *tensor_key(x))) for x in op.inputs]
            leading = [maker for maker in before if maker is not None and id(maker) not in seen]
            wanted = [maker for maker in leading if found is None or self._takes_shared(side, maker)]
            if not wanted:
                return found
            op = wanted[0]
            seen.add(id(op))
            found = found if is_passing_on(op) else op

    def _takes_shared(self, side: Side, op: StepOp) -> bool:
        return any((side, *tensor_key(x)) in self._shared for x in op.inputs)

    def _cause(self, op: StepOp) -> Cause:
        event = op.first
        if event.op == "input":
            return "data"
        if event.op in START_VALUES:
            return "start values" if self.is_first else "optimizer"
        if op_word(op) in RANDOM:
            return "randomness"
        if event.op.startswith(("c10d.", "_c10d_functional.")):
            return "collective"
        causes: dict[str, Cause] = {"backward": "backward", "optimizer": "optimizer", "eval": "eval"}
        return causes.get(event.phase, "forward")

    def _unit(self, pair: OpPair) -> float:
        events = itertools.chain(pair[0].inputs, pair[0].outputs, pair[1].inputs, pair[1].outputs)
        return max([self.coarsest_unit, *(unit_of(dtype) for dtype in {event.dtype for event in events})])

    def _between(self, a: Event, b: Event) -> Distance:
        return self._distances[id(a), id(b)]

    def _remember(self, a: Event, distance: Distance) -> None:
        if distance.is_comparable and math.isfinite(distance.relative):
            self._noise = max(self._noise, distance.relative)
            self._made[tensor_key(a)] = distance.relative


def _heals(found: Divergence, later: Sequence[ComparedTensor]) -> bool:
    """Return whether later results elsewhere agree again: the same was computed in another way.

    A difference in a parameter's gradient, or in an optimizer, does not spread, and counts.
    """
    is_by_the_way = found.is_only_in is not None or found.output.startswith("input")
    if found.phase not in ("forward", "backward") or found.parameter is not None or not is_by_the_way:
        return False
    near = [row for row in later if row.phase == found.phase and row.site != found.site and row.relative >= 0]
    near = near[:HEALED]
    unit = max([unit_of(dtype) for row in near for dtype in (row.reference_dtype, row.candidate_dtype)], default=0.0)
    allowed = min(0.05 * found.relative, 4 * roundings(unit, num_terms=UNKNOWN_TERMS))
    return len(near) >= 3 and all(row.relative <= allowed for row in near)


def _all_distances(pairs: Sequence[OpPair], whole: WholeTensors | None) -> dict[tuple[int, int], Distance]:
    tensors = [
        both
        for reference, candidate in pairs
        for both in (
            *_pair_events(_read_by(reference), _read_by(candidate)),
            *_pair_events(reference.outputs, candidate.outputs),
        )
    ]
    found = {(id(a), id(b)): d for (a, b), d in zip(tensors, distances(tensors), strict=True)}
    if whole is not None:
        for a, b in tensors:
            known = found[id(a), id(b)]
            if known.is_comparable and not known.is_equal:
                found[id(a), id(b)] = whole.distance(a, b) or known
    return found


def _is_workspace(event: Event) -> bool:
    """Return whether a tensor is an op's internal workspace, whose bytes mean nothing."""
    return event.dtype == "uint8" and event.op not in NAMED


def _has_unknown_inputs(op: StepOp) -> bool:
    """Return whether the run does not contain what an op was computed from."""
    if op.first.op in NAMED:
        return op.first.op == "gradient"
    return not op.inputs and op_word(op) not in RANDOM


def _unlike(reference: Sequence[Event], candidate: Sequence[Event]) -> list[tuple[Event, Event]]:
    """Return the pairs of tensors that have different shapes."""
    return [(a, b) for a, b in _pair_events(reference, candidate) if a.shape != b.shape]


def _read_by(op: StepOp) -> Sequence[Event]:
    """Return the inputs whose numbers matter: tensors that an op overwrites may hold anything."""
    word = op_word(op)
    if word in RANDOM or word in ("fill", "zero"):
        return [x for x in op.inputs if x.output != "input0"]
    return op.inputs[1:] if word == "copy" else op.inputs


def _pair_events(reference: Sequence[Event], candidate: Sequence[Event]) -> Iterable[tuple[Event, Event]]:
    """Pair the tensors of two calls by their place."""
    by_place = {event.output: event for event in candidate}
    if len(reference) == len(candidate):
        return zip(reference, candidate, strict=True)
    return [(event, by_place[event.output]) for event in reference if event.output in by_place]


def _is_weight_of_loss(op: StepOp, read: Event) -> bool:
    """Return whether a loss function reads a tensor as the weight of classes or samples: after scores and targets."""
    return op_word(op) in _WEIGHTED_LOSSES and read.output not in ("input0", "input1")


def _is_norm_of(op: StepOp, read: Event) -> bool:
    event = op.first
    place = (event.phase, event.site, event.microbatch)
    return place == ("forward", read.site, read.microbatch) and "batch_norm" in op_word(op)


def _larger(a: Event, b: Event) -> Event:
    return b if b.l2 > a.l2 else a


def _made_by(alignment: Alignment) -> dict[tuple[str, int, str], StepOp]:
    """Return the ops without counterpart by the tensors they made first; casts only if no other op made the tensor."""
    found: dict[tuple[str, int, str], StepOp] = {}
    for side, ops in (("reference", alignment.only_reference), ("candidate", alignment.only_candidate)):
        for op in sorted(ops, key=is_passing_on):
            for output in op.outputs:
                found.setdefault((side, *tensor_key(output)), op)
    return found


def _made_on_both(alignment: Alignment) -> set[tuple[Side, int, str]]:
    """Return the results of aligned ops, of each side."""
    found: set[tuple[Side, int, str]] = set()
    for reference, candidate in alignment.pairs:
        found |= {("reference", *tensor_key(output)) for output in reference.outputs}
        found |= {("candidate", *tensor_key(output)) for output in candidate.outputs}
    return found


def _is_named(op: StepOp, found: Divergence) -> bool:
    event = op.first
    return (event.phase, event.site, event.op_name) == (found.phase, found.site, found.op)


def _excess(distance: Distance, bound: float) -> float:
    if not distance.is_comparable or distance.is_equal or not distance.absolute:
        return 0.0
    return distance.absolute / bound if bound else math.inf


def _row(a: Event, b: Event, distance: Distance, *, inherited: float, excess: float, is_judged: bool) -> ComparedTensor:
    return ComparedTensor(
        step=a.step,
        rank=a.rank,
        phase=a.phase,
        site=a.site,
        op=a.op_name,
        output=a.output,
        parameter=a.parameter,
        source=a.source,
        reference_dtype=a.dtype,
        candidate_dtype=b.dtype,
        shape=shape_to_text(a.shape),
        is_equal=distance.is_equal,
        relative=distance.relative,
        inherited=inherited,
        excess=excess,
        is_judged=is_judged,
        reference_absmax=a.absmax,
        candidate_absmax=b.absmax,
    )


def _divergence(cause: Cause, event: Event, distance: Distance, *, inherited: float, unit: float) -> Divergence:
    eps = 2 * (unit or unit_of("float32"))
    return Divergence(
        cause=cause,
        step=event.step,
        rank=event.rank,
        phase=event.phase,
        site=event.site,
        op=event.op if event.op in NAMED else event.op_name,
        parameter=event.parameter,
        source=event.source,
        output=event.output,
        format=event.dtype,
        relative=distance.relative,
        introduced_ulps=max(0.0, distance.relative - inherited) / eps,
        inherited_ulps=inherited / eps,
        channel=distance.channel,
        num_channels=num_channels(event) if distance.channel is not None else None,
    )
