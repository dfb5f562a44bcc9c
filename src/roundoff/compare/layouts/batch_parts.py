"""Which part of the reference's batch each rank and microbatch of the candidate got."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from roundoff.compare.layouts.layout_fault import LayoutFault, LayoutFaultKind
from roundoff.compare.layouts.measured_tensor import MeasuredTensor, fit, fit_pieces
from roundoff.compare.layouts.parameter_parts import ParameterParts
from roundoff.compare.layouts.piece import WHOLE, Piece, matching_pieces, possible_pieces
from roundoff.compare.layouts.rank_mesh import RankMesh, describe_numbers, describe_ranks
from roundoff.compare.layouts.step_tensors import StepTensors


@dataclass(slots=True)
class BatchParts:
    """What each rank got of the reference's batch."""

    pieces: dict[int, set[tuple[str, Piece]]] = field(default_factory=lambda: defaultdict(set))
    """By rank: place, and the parts of all its microbatches."""
    hashes: dict[int, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    other: dict[int, str] = field(default_factory=dict)
    """Ranks that got something else, and where."""
    unknown: set[str] = field(default_factory=set)
    """Places of which it is not known whether all ranks together got the reference's batch."""
    missing: dict[str, float] = field(default_factory=dict)
    """Places of which no rank got some samples, and their share."""

    def groups(self) -> list[list[int]]:
        """Return the ranks that got the same."""
        found: dict[frozenset[tuple[str, int]], list[int]] = defaultdict(list)
        for rank, content in self.hashes.items():
            found[frozenset(content)].append(rank)
        return list(found.values())


def parts_of_batch(wholes: StepTensors, tensors: StepTensors, parts: ParameterParts) -> BatchParts:
    """Find out which part of the reference's inputs each rank got; stages after the first get no batch."""
    found = BatchParts()
    first = next(iter(parts.wholes), None)
    holders = {rank for part in parts.parts.get(first or "", ()) for rank in part.ranks} or set(tensors.ranks)
    by_place: dict[str, list[MeasuredTensor]] = defaultdict(list)
    for name, of_name in wholes.inputs.items():
        by_place[name.rpartition("@")[0]] += [held.tensor for held in of_name]
    covered: dict[str, set[Piece]] = defaultdict(set)
    for name, of_name in tensors.inputs.items():
        place = name.rpartition("@")[0]
        for held in of_name:
            ranks = [rank for rank in held.ranks if rank in holders]
            for rank in held.ranks:
                found.hashes[rank].add((name, held.tensor.event.hash))
            whole = by_place.get(place, [])
            if not ranks:
                continue
            if len(whole) != 1 or held.tensor.event.dtype != whole[0].event.dtype:
                found.unknown.add(place)
                continue
            pieces = _pieces(held.tensor, whole[0])
            if pieces is None:
                found.unknown.add(place)
                continue
            if not pieces:
                found.other |= dict.fromkeys(ranks, place)
                continue
            covered[place].update(pieces)  # equal samples: it may be any of these
            for rank in ranks:
                found.pieces[rank].add((place, pieces[0]))
    found.unknown = {place for place in found.unknown if not _adds_up(place, by_place.get(place, []), tensors)}
    for place, of_place in covered.items():
        share = _covered_share(of_place, by_place[place][0].shape)
        if share < 1 and not found.other and by_place[place][0].values is not None:
            found.missing[place] = 1 - share
    return found


def _adds_up(place: str, wholes: list[MeasuredTensor], tensors: StepTensors) -> bool:
    """Say whether what all ranks got together has the sums of the reference's batch, which must be one tensor."""
    if len(wholes) != 1:
        return False
    whole = wholes[0]
    of_place = [
        held.tensor for name, of_name in tensors.inputs.items() if name.rpartition("@")[0] == place for held in of_name
    ]
    if sum(tensor.event.num_elements for tensor in of_place) != whole.event.num_elements:
        return False
    return fit_pieces(of_place, whole).is_equal(whole.tolerance)


def _pieces(part: MeasuredTensor, whole: MeasuredTensor) -> list[Piece] | None:
    """Return the parts of the whole that a tensor may be; None if that cannot be found out."""
    if part.shape == whole.shape:
        return [WHOLE] if fit(part, whole).is_equal(part.tolerance) else []
    if not possible_pieces(part.shape, whole.shape):
        return None
    if part.values is None or whole.values is None:
        return None
    return matching_pieces(part, whole)


def _covered_share(pieces: set[Piece], shape: tuple[int, ...]) -> float:
    seen = np.zeros(shape, dtype=bool)
    for piece in pieces:
        index: list[object] = [np.arange(size) for size in shape]
        for cut in piece.cuts:
            index[cut.dim] = cut.indices()
        seen[np.ix_(*index)] = True
    return float(seen.mean()) if seen.size else 1.0


def batch_faults(step: int, batch: BatchParts, mesh: RankMesh | None) -> list[LayoutFault]:
    """Say if ranks got something else than a part of the reference's batch, or all of them not all of it."""
    if batch.other:
        ranks = sorted(batch.other)
        right = sorted(batch.pieces)
        group = describe_ranks([[*right], [*ranks]], mesh) if right else None
        lines = [f"{describe_numbers(right)} got the reference's inputs"] if right else []
        lines.append(
            "if the ranks share the work of a layer they must get the same inputs; if they share the batch, the "
            "reference must get all of it"
        )
        return [
            LayoutFault(
                kind=LayoutFaultKind.INPUTS,
                step=step,
                phase="forward",
                rank=ranks[0],
                title=f"{describe_numbers(ranks)} got other inputs than the reference"
                + (f": the inputs differ over {group}" if group and group.split()[0] not in ("rank", "ranks") else ""),
                why=tuple(lines),
                fix="give every rank of one model copy the same batch: the same seed, sampler and number of replicas",
                numbers={"ranks": list(ranks), "group": group},
            )
        ]
    if batch.missing:
        place, share = next(iter(batch.missing.items()))
        same = [group for group in batch.groups() if len(group) > 1]
        shared = f": {describe_numbers(same[0])} got the same part" if same else ""
        return [
            LayoutFault(
                kind=LayoutFaultKind.INPUTS,
                step=step,
                phase="forward",
                title=f"{100 * share:.0f} % of the reference's batch went to no rank{shared}",
                why=(f"this is about {place.rpartition('#')[0]}",),
                fix="divide the batch between all ranks that share it: check the sampler's rank and number of replicas",
                numbers={"share": share, "ranks": [list(group) for group in same]},
            )
        ]
    return []
