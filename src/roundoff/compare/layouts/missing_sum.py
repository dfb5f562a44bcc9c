"""Finds a result that is a sum over ranks in the reference, and that the ranks of the candidate never sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from roundoff.compare.layouts.layout_fault import LayoutFault, LayoutFaultKind
from roundoff.compare.layouts.measured_tensor import MeasuredTensor, fit
from roundoff.compare.layouts.parameter_parts import ParameterParts
from roundoff.compare.layouts.part_verdict import Agreement, PartHolder, judge_parts
from roundoff.compare.layouts.piece import WHOLE, matching_pieces
from roundoff.compare.layouts.rank_mesh import RankMesh, describe_ranks
from roundoff.compare.layouts.step_tensors import tensor_file
from roundoff.runs import Run
from roundoff.runs.records.event import LOOP, NAMED

MAX_RANKS = 16
"""Of more ranks, the first are looked at."""
_NEAR = 0.02
_MIN_ELEMENTS = 8
"""Smaller parts of a tensor may be equal by chance."""

_Key: TypeAlias = tuple[str, str, str, int]


def find_missing_sum(
    reference: Run, candidate: Run, *, step: int, phase: str, parts: ParameterParts, mesh: RankMesh | None
) -> LayoutFault | None:
    """Return the first result of a phase that ranks have summands of and that none of them ever has whole.

    Inside a correct layer such summands are normal: the sum of them follows. Whole tensors of both runs are needed.
    """
    ranks = candidate.ranks[:MAX_RANKS]
    if len(reference.ranks) != 1 or tensor_file(reference, step, reference.ranks[0]) is None:
        return None
    by_rank = {rank: _results(candidate, step, rank, phase, parts.sites(rank)) for rank in ranks}
    for key, whole in _results(reference, step, reference.ranks[0], phase, {}).items():
        holders = [
            PartHolder((rank,), found[key], (WHOLE,), rank)
            for rank, found in by_rank.items()
            if key in found and found[key].shape == whole.shape
        ]
        if len(holders) < 2 or not whole.event.l2 or key[0] == LOOP:
            continue
        verdict = judge_parts(holders, whole)
        if verdict.agreement is not Agreement.PARTIAL or abs(verdict.factor - round(verdict.factor)) > _NEAR:
            continue
        if _is_parameter_gradient(whole, parts) or _is_summed(whole, by_rank):
            continue
        group = describe_ranks(verdict.classes, mesh)
        what = "result" if phase == "forward" else "gradient"
        return LayoutFault(
            kind=LayoutFaultKind.REDUCTION,
            step=step,
            phase=phase,
            site=key[0],
            title=f"the {what} that {key[1]} computes in the {phase} of {key[0]} is not summed over {group}",
            why=(f"the sum of what the ranks have is {verdict.factor:.4g} times the reference's, and no rank has it",),
            fix=f"sum it over {group} in the {phase} pass, where {key[0]} passes it on",
            confidence=0.85,
            numbers={"group": group, "factor": verdict.factor, "ranks": [list(of) for of in verdict.classes]},
        )
    return None


def _results(run: Run, step: int, rank: int, phase: str, sites: Mapping[str, str]) -> dict[_Key, MeasuredTensor]:
    """Return the results of a rank's phase by site, op, output and microbatch, in the order of time."""
    file = tensor_file(run, step, rank)
    events = sorted(run.iter_events(step=step, rank=rank, phase=phase), key=lambda event: event.order)
    return {
        (sites.get(event.site, event.site), event.op_name, event.output, event.microbatch): MeasuredTensor(
            event=event, file=file
        )
        for event in events
        if event.op not in NAMED and event.output.startswith("output")
    }


def _is_parameter_gradient(whole: MeasuredTensor, parts: ParameterParts) -> bool:
    """Say whether a result has the size of a parameter of its site: that is judged as what the optimizer gets."""
    return whole.event.phase == "backward" and any(
        parameter.event.num_elements == whole.event.num_elements
        for name, parameter in parts.wholes.items()
        if name.rpartition(".")[0] == whole.event.site
    )


def _is_summed(whole: MeasuredTensor, by_rank: Mapping[int, Mapping[_Key, MeasuredTensor]]) -> bool:
    """Say whether a rank has the reference's result, a part of it, or a multiple."""
    for tensor in (tensor for found in by_rank.values() for tensor in found.values()):
        if tensor.shape == whole.shape:
            found = fit(tensor, whole)
            if found.is_multiple(tensor.tolerance) and found.factor:
                return True
        elif tensor.values is not None and tensor.event.num_elements > _MIN_ELEMENTS and matching_pieces(tensor, whole):
            return True
    return False
