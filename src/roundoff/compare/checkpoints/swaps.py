"""Finds values under other names: tensors that are swapped, and pairs that names had let one guess only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from roundoff.checkpoints.checkpoint import Checkpoint
from roundoff.checkpoints.pair.layer_matching import PairedBy
from roundoff.checkpoints.pair.pairing import TensorPair
from roundoff.checkpoints.pair.unpaired_tensors import UnpairedTensor
from roundoff.compare.checkpoints.compared_pair import (
    MeasuredPair,
    PairKind,
    agreement,
    coarser_dtype,
    lay_out_like,
    near,
    sample_values,
    samples_agree,
)

GUESSED = (PairedBy.SHAPE, PairedBy.EDIT_DISTANCE, PairedBy.POSITION)
"""What may be wrong about a pair rather than about its values."""
MAX_GROUP = 2000
"""Of more tensors of one shape only the first are held against each other."""
NUM_PROBES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """The reference of one pair has the values of another pair's candidate."""

    reference: TensorPair
    candidate: TensorPair


def find_swaps(looked: Iterable[MeasuredPair], reference: Checkpoint, candidate: Checkpoint) -> list[Swap]:
    """Hold every reference that differs from its candidate against the candidates of other pairs of its shape.

    Samples are compared first; only what they let expect is read again.
    """
    groups: dict[tuple[int, ...], list[MeasuredPair]] = defaultdict(list)
    for each in looked:
        if each.samples is not None and each.compared.kind in (PairKind.DIFFERENT, PairKind.NOT_LOADED):
            groups[each.compared.shape].append(each)
    found = []
    for group in groups.values():
        taken: set[str] = set()
        for place, other in _possible(group[:MAX_GROUP]):
            reference_pair, candidate_pair = group[place].compared.pair, group[other].compared.pair
            if taken & {f"< {reference_pair.reference}", f"> {candidate_pair.candidate}"}:
                continue
            if _are_the_same(reference_pair.reference, candidate_pair, reference, candidate):
                found.append(Swap(reference=reference_pair, candidate=candidate_pair))
                taken |= {f"< {reference_pair.reference}", f"> {candidate_pair.candidate}"}
    return found


def corrected_pairs(swaps: Sequence[Swap], looked: Iterable[MeasuredPair]) -> list[TensorPair]:
    """Return the pairs that values put right: what names had let one guess, not what they said.

    The partners that are left over by that go together, in their order.
    """
    guessed = {each.compared.pair.reference: each.compared.pair for each in looked if _is_guess(each)}
    right = [each for each in swaps if {each.reference.reference, each.candidate.reference} <= guessed.keys()]
    matched = {each.reference.reference for each in right}
    taken = {each.candidate.reference for each in right}
    lost = [pair for name, pair in guessed.items() if name in taken - matched]
    free = [pair for name, pair in guessed.items() if name in matched - taken]
    told = [_exchange_candidates(each.reference, each.candidate, by=PairedBy.VALUES) for each in right]
    return told + [
        _exchange_candidates(reference, candidate, by=reference.by)
        for reference, candidate in zip(lost, free, strict=True)
    ]


def leftovers_by_values(
    only_reference: Iterable[UnpairedTensor],
    only_candidate: Iterable[UnpairedTensor],
    reference: Checkpoint,
    candidate: Checkpoint,
) -> list[TensorPair]:
    """Pair tensors that names did not line up and that have the same values."""
    candidate_samples: dict[tuple[int, ...], dict[str, Tensor]] = defaultdict(dict)
    for each in only_candidate:
        if each.matters and len(candidate_samples[each.shape]) < MAX_GROUP:
            candidate_samples[each.shape][each.name] = sample_values(candidate.tensor(each.name))
    pairs = []
    for each in only_reference:
        others = candidate_samples.get(each.shape)
        if each.matters and others:
            found = _same_among(each, others, reference, candidate)
            if found is not None:
                del others[found.candidate]
                pairs.append(found)
    return pairs


def _same_among(
    unpaired: UnpairedTensor, others: Mapping[str, Tensor], reference: Checkpoint, candidate: Checkpoint
) -> TensorPair | None:
    values = sample_values(reference.tensor(unpaired.name))
    if _is_constant(values):
        return None
    for name, sampled in others.items():
        pair = TensorPair(reference=unpaired.name, candidate=name, role=unpaired.role, by=PairedBy.VALUES)
        if samples_agree(values, sampled, torch.bfloat16) and _are_the_same(unpaired.name, pair, reference, candidate):
            return pair
    return None


def _possible(group: Sequence[MeasuredPair]) -> list[tuple[int, int]]:
    """Return the places of a reference and of another pair's candidate whose samples could be the same values."""
    sampled = [each.samples for each in group if each.samples is not None]
    if len(sampled) < 2:
        return []
    reference, candidate = torch.stack([both[0] for both in sampled]), torch.stack([both[1] for both in sampled])
    dtype = torch.float64
    for name in {name for each in group for name in each.compared.dtypes}:
        dtype = coarser_dtype(dtype, getattr(torch, name))
    could_be = ~torch.eye(len(sampled), dtype=torch.bool) & ~_are_constant(reference)[:, None]
    for probe in torch.linspace(0, reference.shape[1] - 1, min(NUM_PROBES, reference.shape[1])).long():
        could_be &= near(reference[:, probe, None], candidate[None, :, probe], dtype)
    places: list[tuple[int, int]] = [(int(place), int(other)) for place, other in could_be.nonzero()]
    return [(place, other) for place, other in places if samples_agree(reference[place], candidate[other], dtype)]


def _are_constant(rows: Tensor) -> Tensor:
    """Say of which rows samples tell nothing: zeros are equal to any other zeros."""
    return (rows == rows[:, :1]).all(dim=1)


def _is_constant(values: Tensor) -> bool:
    return not values.numel() or bool(_are_constant(values[None])[0])


def _are_the_same(name: str, candidate_pair: TensorPair, reference: Checkpoint, candidate: Checkpoint) -> bool:
    first = reference.tensor(name)
    return (
        agreement(first, lay_out_like(candidate.tensor(candidate_pair.candidate), candidate_pair, tuple(first.shape)))
        is not None
    )


def _is_guess(looked: MeasuredPair) -> bool:
    return looked.compared.pair.by in GUESSED


def _exchange_candidates(reference: TensorPair, candidate: TensorPair, *, by: PairedBy) -> TensorPair:
    """Return the pair of the one's reference and the other's candidate, with the candidate's axes."""
    return replace(candidate, reference=reference.reference, role=reference.role, by=by)
