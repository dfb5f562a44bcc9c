"""Compares two steps, mostly of one run: which weights were updated and by how much, and where values grow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundoff.compare.runs.alignment import align
from roundoff.compare.runs.event_distance import distances, finite_absmax
from roundoff.compare.shown_comparison import ShownComparison
from roundoff.errors import CompareError
from roundoff.runs import Event, Run, script_words
from roundoff.runs.records.event import NAMED, StepOp, ops_of

GROWN = 4.0
"""Values that became at least this many times larger have grown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterMove:
    """How far a parameter went from one step to the other."""

    parameter: str
    relative: float
    """The norm of the change over that of the parameter; the change of the norm, if only norms are known. Infinite
    if it was 0 before."""
    is_equal: bool
    """Whether it did not change at all: by its bits, or by its norm if only norms are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The largest magnitude of one result in both steps."""

    phase: str
    site: str
    op: str
    source: str | None
    reference_absmax: float
    candidate_absmax: float

    @property
    def ratio(self) -> float:
        """How many times larger it is in the second step; 1 where it was 0."""
        return self.candidate_absmax / self.reference_absmax if self.reference_absmax else 1.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepPairComparison(ShownComparison):
    """What changed from one step to another."""

    reference_step: int
    candidate_step: int
    moves: tuple[ParameterMove, ...]
    """Of every parameter that both steps have, in the model's order."""
    growths: tuple[Growth, ...]
    """Of every result that both steps have, in the order they ran; empty if a step was not recorded."""

    @property
    def first_growth(self) -> Growth | None:
        """The first result whose values have grown."""
        return next((growth for growth in self.growths if growth.ratio >= GROWN), None)


def compare_steps(
    reference: Run, reference_step: int, candidate: Run, candidate_step: int, *, rank: int = 0
) -> StepPairComparison:
    """Compare a step of one run with another step of it, or of another run.

    Steps whose ops were recorded are compared by their tensors; steps that were only watched by the norms of their
    parameters.
    """
    reference_ops = ops_of(reference.iter_events(step=reference_step, rank=rank))
    candidate_ops = ops_of(candidate.iter_events(step=candidate_step, rank=rank))
    if reference_ops and candidate_ops:
        pairs = align(reference_ops, candidate_ops).pairs
        moves = _moves([(a, b) for a, b in pairs if a.first.op == "parameter"])
        growths = [_growth(x, y) for a, b in pairs for x, y in zip(a.outputs, b.outputs, strict=False) if _is_result(x)]
    else:
        norms = (
            _norms(reference, reference_step, rank, reference_ops),
            _norms(candidate, candidate_step, rank, candidate_ops),
        )
        moves, growths = _moves_of_norms(*norms), []
    return StepPairComparison(
        reference_step=reference_step,
        candidate_step=candidate_step,
        moves=tuple(moves),
        growths=tuple(growths),
    )


def _moves(pairs: list[tuple[StepOp, StepOp]]) -> list[ParameterMove]:
    events = [(a.outputs[0], b.outputs[0]) for a, b in pairs]
    return [
        ParameterMove(
            parameter=a.parameter or a.site,
            relative=distance.relative if a.l2 or distance.is_equal else math.inf,
            is_equal=distance.is_equal,
        )
        for (a, _), distance in zip(events, distances(events), strict=True)
    ]


def _moves_of_norms(reference: Mapping[str, float], candidate: Mapping[str, float]) -> list[ParameterMove]:
    return [
        ParameterMove(
            parameter=name,
            relative=abs(candidate[name] - norm) / norm if norm else math.inf if candidate[name] else 0.0,
            is_equal=candidate[name] == norm,
        )
        for name, norm in reference.items()
        if name in candidate
    ]


def _norms(run: Run, step: int, rank: int, ops: Sequence[StepOp]) -> dict[str, float]:
    """Return the norms of parameters before the step, from its events or as the watch measured them."""
    found = {op.first.parameter or op.first.site: op.first.l2 for op in ops if op.first.op == "parameter"}
    if not found:
        table = run.parameters(step=step, rank=rank)
        found = dict(zip(table["parameter"].to_list(), table["l2"].to_list(), strict=True))
    if not found:
        watched = run.parameters(rank=rank)["step"].unique()
        known = f"steps {watched[0]} to {watched[-1]}" if watched else "none"
        raise CompareError.explain(
            f"'{run.path}' contains nothing about step {step}.",
            why=f"its ops were recorded in steps {run.steps}, its parameters measured in {known}.",
            fix=f"record it: roundoff record --steps {step} {script_words(run.info)}",
        )
    return found


def _is_result(event: Event) -> bool:
    """Return whether growth of a result means anything: an optimizer's state starts at zero and always grows."""
    return event.op not in NAMED and event.phase != "optimizer" and event.dtype.startswith(("float", "bfloat"))


def _growth(a: Event, b: Event) -> Growth:
    return Growth(
        phase=a.phase,
        site=a.site,
        op=a.op_name,
        source=a.source,
        reference_absmax=finite_absmax(a),
        candidate_absmax=finite_absmax(b),
    )
