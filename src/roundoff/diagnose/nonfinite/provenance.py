"""Where each NaN and infinity of a step came from: its roots, followed from op to op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from roundoff.runs import Event
from roundoff.runs.records.step_ops import NAMED, StepOp

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
