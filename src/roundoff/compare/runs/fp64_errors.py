"""Which of two runs is nearer to fp64, op by op: by the errors that `roundoff record --reference fp64` measures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from roundoff.compare.runs.alignment import Alignment, is_passing_on
from roundoff.compare.runs.divergence import Side
from roundoff.formats import eps_of_dtype
from roundoff.runs import Event
from roundoff.runs.records.event import StepOp
from roundoff.words import join_names

_ALIKE = 1.25
"""Errors within this factor of each other are alike."""
_MIN_ELEMENTS = 16
"""The error of fewer numbers is chance."""
_MAX_NAMES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedError:
    """The error that an op, or the ops of one site that have no counterpart, introduces in each run."""

    step: int
    phase: str
    site: str
    reference_ops: str
    candidate_ops: str
    reference: float
    """Root mean square of what was added, given the op's own inputs, relative to the size of the result; of several ops
    the root of the sum of their squares."""
    candidate: float

    @property
    def nearer(self) -> Side | None:
        """The side with the smaller error; None if they are alike."""
        if max(self.reference, self.candidate) <= _ALIKE * min(self.reference, self.candidate):
            return None
        return "reference" if self.reference < self.candidate else "candidate"

    @property
    def ratio(self) -> float:
        """How many times larger the larger error is; infinite if the other is 0."""
        smaller, larger = sorted((self.reference, self.candidate))
        return larger / smaller if smaller else math.inf if larger else 1.0


def compare_errors(alignment: Alignment) -> list[ComparedError]:
    """Compare the errors of aligned ops, and of the ops of each site and phase that only one run has, together.

    Empty if a run was recorded without `--reference`.
    """
    found = [_compare([reference], [candidate]) for reference, candidate in alignment.pairs]
    alone: dict[tuple[str, str], tuple[list[StepOp], list[StepOp]]] = {}
    for side, ops in enumerate((alignment.only_reference, alignment.only_candidate)):
        for op in ops:
            alone.setdefault((op.first.phase, op.first.site), ([], []))[side].append(op)
    found += [_compare(reference, candidate) for reference, candidate in alone.values()]
    return [each for each in found if each is not None]


def _compare(reference: Sequence[StepOp], candidate: Sequence[StepOp]) -> ComparedError | None:
    first, second = _ops_with_errors(reference), _ops_with_errors(candidate)
    if not first or not second:
        return None
    errors = [math.sqrt(sum(_square(op) for op in ops)) for ops in (first, second)]
    event = first[0].first
    return ComparedError(
        step=event.step,
        phase=event.phase,
        site=event.site,
        reference_ops=join_names([op.first.op_name for op in first], at_most=_MAX_NAMES),
        candidate_ops=join_names([op.first.op_name for op in second], at_most=_MAX_NAMES),
        reference=errors[0],
        candidate=errors[1],
    )


def _ops_with_errors(ops: Iterable[StepOp]) -> list[StepOp]:
    """Return the ops whose error is known, without casts and copies, and those whose few numbers say nothing."""
    return [op for op in ops if not is_passing_on(op) and any(map(_is_measured, op.outputs))]


def _is_measured(output: Event) -> bool:
    return output.introduced_rms_ulps is not None and output.num_elements >= _MIN_ELEMENTS


def _square(op: StepOp) -> float:
    """Return the squared error of an op's worst result."""
    errors = [
        (output.introduced_rms_ulps or 0.0) * eps_of_dtype(output.dtype) for output in filter(_is_measured, op.outputs)
    ]
    return max(errors) ** 2
