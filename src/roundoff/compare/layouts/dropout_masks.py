"""Random numbers across ranks: equal where ranks hold the same tensor, different where they hold parts of one."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.compare.layouts.batch_parts import BatchParts
from roundoff.compare.layouts.forward_walk import SiteDraw
from roundoff.compare.layouts.layout_fault import LayoutFault, LayoutFaultKind
from roundoff.compare.layouts.measured_tensor import MeasuredTensor, fit
from roundoff.compare.layouts.piece import WHOLE, matching_pieces
from roundoff.compare.layouts.rank_mesh import RankMesh, describe_ranks


def dropout_faults(
    step: int, draws: Sequence[SiteDraw], batch: BatchParts, mesh: RankMesh | None
) -> tuple[list[LayoutFault], list[str]]:
    """Return what is wrong with random numbers, and why nothing after them can be compared, if that is so."""
    for draw in draws:
        if draw.reference is None or _is_reference(draw):
            continue
        for group in batch.groups():
            tensors = {rank: draw.by_rank[rank] for rank in group if rank in draw.by_rank}
            has_whole_batch = all(piece == WHOLE for rank in group for _, piece in batch.pieces.get(rank, ()))
            fault = _fault(step, draw, tensors, mesh, has_whole_batch=has_whole_batch) if len(tensors) > 1 else None
            if fault is not None:
                return [fault], []
    other = [draw.site for draw in draws if not _is_reference(draw)]
    if not other:
        return [], []
    return [], [
        f"{other[0]} draws other random numbers than in the reference, so that no result after it can be compared; "
        "switch dropout off in both runs to compare values"
    ]


def _fault(
    step: int, draw: SiteDraw, tensors: dict[int, MeasuredTensor], mesh: RankMesh | None, *, has_whole_batch: bool
) -> LayoutFault | None:
    """Compare the random numbers of ranks that got the same inputs.

    Where they got a part of the batch, a smaller first dimension says nothing about how a tensor is divided.
    """
    assert draw.reference is not None
    whole, first = draw.reference.shape, next(iter(tensors.values()))
    if any(tensor.shape != first.shape for tensor in tensors.values()) or len(first.shape) != len(whole):
        return None
    by_hash: dict[int, list[int]] = {}
    for rank, tensor in tensors.items():
        by_hash.setdefault(tensor.event.hash, []).append(rank)
    is_replicated = first.shape[1:] == whole[1:] and _same_batch(first, draw.reference, tensors)
    group = describe_ranks(list(by_hash.values()) if len(by_hash) > 1 else [[rank] for rank in tensors], mesh)
    common = {"step": step, "phase": "forward", "site": draw.site, "kind": LayoutFaultKind.DROPOUT}
    ranks = [list(of_hash) for of_hash in by_hash.values()]
    if is_replicated and len(by_hash) > 1:
        return LayoutFault(
            **common,  # type: ignore[arg-type]
            title=f"{draw.site} draws different random numbers on ranks that hold the same tensor, over {group}",
            why=(f"its tensor has the shape {_text(first.shape)} on every rank, as in the reference",),
            fix=f"seed the generator for tensors that are the same on {group} with the same number on all of them",
            numbers={"group": group, "ranks": ranks, "should_be": "equal"},
        )
    is_known = has_whole_batch or first.shape[1:] != whole[1:]
    if not is_replicated and is_known and len(by_hash) == 1 and first.event.num_elements > 8:
        return LayoutFault(
            **common,  # type: ignore[arg-type]
            title=f"{draw.site} draws the same random numbers on ranks that hold different parts, over {group}",
            why=(f"its tensor has the shape {_text(whole)} in the reference and {_text(first.shape)} on each rank",),
            fix=f"seed the generator for tensors that are divided over {group} differently on each of them",
            numbers={"group": group, "ranks": ranks, "should_be": "different"},
        )
    return None


def _same_batch(part: MeasuredTensor, whole: MeasuredTensor, tensors: dict[int, MeasuredTensor]) -> bool:
    """Say whether the first dimension is that of the whole, or of a part of the batch that all these ranks have."""
    return part.shape[:1] == whole.shape[:1] or part.shape[0] * len(tensors) != whole.shape[0]


def _is_reference(draw: SiteDraw) -> bool:
    """Say whether every rank draws a part of what the reference draws."""
    if draw.reference is None:
        return False
    for tensor in draw.by_rank.values():
        if tensor.shape == draw.reference.shape:
            if not fit(tensor, draw.reference).is_equal(tensor.tolerance):
                return False
        elif tensor.values is None or not matching_pieces(tensor, draw.reference):
            return False
    return True


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
