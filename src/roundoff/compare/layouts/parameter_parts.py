"""Which part of which parameter of the reference each rank of the candidate holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from roundoff.compare.layouts.measured_tensor import MeasuredTensor, fit, fit_arrays
from roundoff.compare.layouts.part_verdict import PartHolder
from roundoff.compare.layouts.piece import WHOLE, Cut, Piece, matching_pieces
from roundoff.compare.layouts.step_tensors import RankTensor, StepTensors
from roundoff.runs import TensorPlacement

Matched: TypeAlias = dict[tuple[str, tuple[int, ...]], list[Piece]]


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A parameter of the candidate: its name there, the ranks that have it, and what it is a part of."""

    name: str
    ranks: tuple[int, ...]
    tensor: MeasuredTensor
    pieces: tuple[Piece, ...]


@dataclass(slots=True, kw_only=True)
class ParameterParts:
    """The parameters of a candidate as parts of those of a reference."""

    wholes: dict[str, MeasuredTensor]
    """The whole parameters of the reference, in the order of its models."""
    parts: dict[str, list[HeldPart]] = field(default_factory=lambda: defaultdict(list))
    """By the name in the reference."""
    different: dict[str, list[HeldPart]] = field(default_factory=lambda: defaultdict(list))
    """Those that are no part of what has their name in the reference, by that name."""
    only_in_candidate: set[str] = field(default_factory=set)
    not_whole: set[str] = field(default_factory=set)
    """Parameters of the reference whose own parts could not be put together."""

    def sites(self, rank: int) -> dict[str, str]:
        """Return the reference's names of the sites of a rank of the candidate that own parameters."""
        found: dict[str, str] = {}
        for reference, held in self.parts.items():
            for part in held:
                if rank in part.ranks:
                    found.setdefault(part.name.rpartition(".")[0], reference.rpartition(".")[0])
        return found

    def is_tied(self, reference: str) -> bool:
        """Whether ranks of the candidate have the parameter under several names: one whose weight two stages share."""
        return len({part.name for part in self.parts[reference]}) > 1

    def holders(self, reference: str, tensors: Mapping[str, list[RankTensor]]) -> list[PartHolder]:
        """Return other tensors of the candidate, such as gradients, as parts of that of one parameter."""
        found = []
        for part in self.parts[reference]:
            for other in tensors.get(part.name, ()):
                ranks = tuple(rank for rank in other.ranks if rank in part.ranks)
                if ranks and other.tensor.shape == part.tensor.shape:
                    found.append(PartHolder(ranks, other.tensor, part.pieces, part.tensor.event.hash))
                elif ranks and other.tensor.shape == self.wholes[reference].shape:
                    found.append(PartHolder(ranks, other.tensor, (WHOLE,), None))
        return found


def match_parameters(
    reference: StepTensors,
    candidate: StepTensors,
    *,
    names: Mapping[str, str] | None = None,
    placed: Mapping[int, Mapping[str, Piece]] | None = None,
) -> ParameterParts:
    """Find out which part of the reference's parameters each rank of the candidate holds.

    By name first; by hash where a name means something else on some ranks, as numbers of layers do on later stages of
    a pipeline, and those of experts. `names` maps names of the reference to those of the candidate; `placed` has the
    parts that DTensors say they are, by rank and name.
    """
    renamed = {other: name for name, other in (names or {}).items()}
    found = ParameterParts(wholes={})
    for name, tensors in reference.parameters.items():
        whole = _whole(tensors, candidate.parameters.get((names or {}).get(name, name), ()))
        if whole is None:
            found.not_whole.add(name)
        else:
            found.wholes[name] = whole
    by_hash = {(whole.event.hash, whole.shape): name for name, whole in reversed(found.wholes.items())}
    matched: Matched = {}
    usual = _usual_pieces(found.wholes, candidate, renamed, matched)
    for name, tensors in candidate.parameters.items():
        own_name = renamed.get(name, name)
        whole = found.wholes.get(own_name)
        for ranks, tensor in ((held.ranks, held.tensor) for held in tensors):
            said = (placed or {}).get(ranks[0], {}).get(name)
            pieces = () if whole is None else _pieces(tensor, whole, said, matched.get((name, ranks)))
            if pieces:
                ordered = tuple(sorted(pieces, key=lambda piece: piece not in usual[ranks[0]]))
                found.parts[own_name].append(HeldPart(name, ranks, tensor, ordered))
            elif (other := by_hash.get((tensor.event.hash, tensor.shape))) is not None:
                found.parts[other].append(HeldPart(name, ranks, tensor, (WHOLE,)))
            elif whole is not None:
                found.different[own_name].append(HeldPart(name, ranks, tensor, ()))
            elif own_name not in found.not_whole:
                found.only_in_candidate.add(name)
    return found


def placed_pieces(placements: Sequence[TensorPlacement]) -> dict[str, Piece]:
    """Return the parts that a rank's parameters are, by what their DTensors say; without those in no usual order."""
    found: dict[str, Piece] = {}
    for placed in placements:
        cuts: dict[int, Cut] = {}
        for size, place, kind in zip(placed.mesh.values(), placed.coordinate, placed.placements, strict=False):
            if kind == "replicate":
                continue
            if not kind.startswith("shard("):
                break
            dim = int(kind[6:-1])
            before = cuts.get(dim, Cut(dim, 0, placed.shape[dim]))
            length = -(-before.length // size)
            start = min(place * length, before.length)
            cuts[dim] = Cut(dim, before.start + start, min(length, before.length - start))
        else:
            if placed.kind == "parameter":
                found[placed.name] = Piece(tuple(cuts.values()))
    return found


def _pieces(
    tensor: MeasuredTensor, whole: MeasuredTensor, said: Piece | None = None, matched: list[Piece] | None = None
) -> tuple[Piece, ...]:
    if tensor.shape == whole.shape:
        return (WHOLE,) if fit(tensor, whole).is_equal(tensor.tolerance) else ()
    if not tensor.event.num_elements:
        return (WHOLE,)  # a rank may hold nothing of a small parameter
    if said is not None and tensor.values is not None and whole.values is not None:
        cut = said.take(whole.values)
        if cut.shape == tensor.shape and fit_arrays(tensor.values, cut).is_equal(tensor.tolerance):
            return (said,)
    if said is not None and tensor.values is None:
        return (said,)
    return tuple(matching_pieces(tensor, whole) if matched is None else matched)


def _usual_pieces(
    wholes: Mapping[str, MeasuredTensor], candidate: StepTensors, renamed: Mapping[str, str], matched: Matched
) -> dict[int, set[Piece]]:
    """Return the pieces that each rank certainly holds of some parameter, to decide where several are possible.

    What each tensor may be is kept in `matched`.
    """
    found: dict[int, set[Piece]] = defaultdict(set)
    numbers: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    ambiguous: list[tuple[tuple[int, ...], list[Piece], MeasuredTensor]] = []
    for name, tensors in candidate.parameters.items():
        whole = wholes.get(renamed.get(name, name))
        if whole is None:
            continue
        for held in tensors:
            if held.tensor.shape == whole.shape or not held.tensor.event.num_elements:
                continue
            pieces = matched[name, held.ranks] = matching_pieces(held.tensor, whole)
            if len(pieces) == 1 and len(pieces[0].cuts) == 1 and pieces[0].cuts[0].step == 1:
                cut = pieces[0].cuts[0]
                for rank in held.ranks:
                    numbers[rank][cut.start // cut.length, whole.shape[cut.dim] // cut.length] += 1
            elif len(pieces) > 1:
                ambiguous.append((held.ranks, pieces, whole))
    for ranks, pieces, whole in ambiguous:
        for rank in ranks:
            found[rank] |= {piece for piece in pieces if _number(piece, whole) in numbers[rank]}
    return found


def _number(piece: Piece, whole: MeasuredTensor) -> tuple[int, int] | None:
    """Return which of how many equal stretches a piece is."""
    if len(piece.cuts) != 1 or piece.cuts[0].step != 1 or piece.cuts[0].second is not None:
        return None
    cut = piece.cuts[0]
    return cut.start // cut.length, whole.shape[cut.dim] // cut.length


def _whole(tensors: Sequence[RankTensor], others: Sequence[RankTensor]) -> MeasuredTensor | None:
    """Return the whole tensor that ranks of the reference hold parts of.

    All have the same, or their parts, in the order of ranks, make up a whole of which the candidate has parts too.
    """
    first = tensors[0].tensor
    if len(tensors) == 1:
        return first
    ordered = sorted(tensors, key=lambda held: held.ranks)
    values = [held.tensor.values for held in ordered]
    if any(value is None for value in values):
        return None
    arrays = [value for value in values if value is not None]
    for dim in range(len(first.shape)):
        if len({(*array.shape[:dim], *array.shape[dim + 1 :]) for array in arrays}) > 1:
            continue
        whole = first.with_values(np.concatenate(arrays, axis=dim))
        if others and all(_pieces(held.tensor, whole) for held in others):
            return whole
    return None


def whole_like(parameter: MeasuredTensor, tensors: Sequence[RankTensor]) -> MeasuredTensor | None:
    """Put another tensor of the reference's ranks, such as a gradient, together as its parameter was."""
    if len(tensors) == 1 and tensors[0].tensor.shape == parameter.shape:
        return tensors[0].tensor
    first = tensors[0].tensor
    differing = (
        [dim for dim, (a, b) in enumerate(zip(first.shape, parameter.shape, strict=True)) if a != b]
        if len(first.shape) == len(parameter.shape)
        else []
    )
    values = [held.tensor.values for held in sorted(tensors, key=lambda held: held.ranks)]
    if len(differing) != 1 or any(value is None for value in values):
        return None
    whole = np.concatenate([value for value in values if value is not None], axis=differing[0])
    return first.with_values(whole) if whole.shape == parameter.shape else None
