"""What differs between two checkpoints, and what looks wrong about it, the most suspicious first."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from roundoff.checkpoints.checkpoint import Checkpoint, Role
from roundoff.checkpoints.pair.layer_matching import PairedBy
from roundoff.checkpoints.pair.pairing import Pairing, TensorPair, UnpairedTensor, pair_checkpoints
from roundoff.compare.checkpoints.compared_pair import (
    ComparedPair,
    MeasuredPair,
    PairKind,
    agreement,
    coarser_dtype,
    lay_out_like,
    measure_pair,
    near,
    sample_values,
    samples_agree,
)
from roundoff.compare.shown_comparison import ShownComparison
from roundoff.progress import counting
from roundoff.runs import JsonValue

MAX_GROUP = 2000
"""Of more tensors of one shape only this many are compared with each other."""
NUM_PROBES = 4


SUSPICIOUS = (PairKind.NOT_LOADED, PairKind.NOT_UPDATED, PairKind.TRANSPOSED, PairKind.SWAPPED, PairKind.DIFFERENT)
RELATED_COSINE = 0.5
"""The minimum cosine of two states of one parameter; unrelated ones are far below."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckpointComparison(ShownComparison):
    """Two checkpoints, pair by pair."""

    reference: str
    candidate: str
    formats: tuple[str, str]
    pairs: tuple[ComparedPair, ...]
    """The most suspicious first."""
    only_reference: tuple[UnpairedTensor, ...]
    only_candidate: tuple[UnpairedTensor, ...]
    is_one_training: bool
    """They look like two states of one training: the same names, and most parameters moved but not far."""

    def of_kind(self, *kinds: PairKind) -> list[ComparedPair]:
        """Return the pairs of these kinds, the most suspicious first."""
        return [each for each in self.pairs if each.kind in kinds]

    @property
    def missing(self) -> tuple[tuple[UnpairedTensor, ...], tuple[UnpairedTensor, ...]]:
        """What only the reference and only the candidate has, and a model needs."""
        sides = self.only_reference, self.only_candidate
        reference, candidate = (tuple(each for each in side if each.matters) for side in sides)
        return reference, candidate

    @property
    def differs(self) -> bool:
        """Something differs that the formats of the two do not explain."""
        return any(self.missing) or any(each.kind in SUSPICIOUS for each in self.pairs)

    def to_object(self) -> dict[str, JsonValue]:
        """Return it as a JSON object."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "formats": list(self.formats),
            "differs": self.differs,
            "is_one_training": self.is_one_training,
            "pairs": [each.to_object() for each in self.pairs],
            "only_reference": [_unpaired_object(each) for each in self.only_reference],
            "only_candidate": [_unpaired_object(each) for each in self.only_candidate],
        }


def _unpaired_object(each: UnpairedTensor) -> dict[str, JsonValue]:
    return {
        "name": each.name,
        "shape": list(each.shape),
        "role": each.role.value,
        "why": each.why,
        "nearest": each.nearest,
        "matters": each.matters,
    }


def compare_checkpoints(
    reference: Checkpoint, candidate: Checkpoint, *, name_map: Mapping[str, str] | None = None
) -> CheckpointComparison:
    """Line up two checkpoints and compare them, one pair of tensors at a time.

    A guessed pair that values show to be wrong is corrected. The tolerance is that of the coarser of two dtypes.
    """
    pairing = pair_checkpoints(
        reference.entries,
        candidate.entries,
        reference_format=reference.format,
        candidate_format=candidate.format,
        name_map=name_map,
    )
    found = leftovers_by_values(pairing.only_reference, pairing.only_candidate, reference, candidate)
    pairing = _with_pairs(pairing, found)
    looked = [_measure(each, reference, candidate) for each in counting(pairing.pairs, "tensor")]
    swaps = find_swaps(looked, reference, candidate)
    better = {each.reference: each for each in corrected_pairs(swaps, looked)}
    partners = {each.reference.reference: each.candidate.candidate for each in swaps}
    compared = [_judge_pairs(each, better, partners, reference, candidate) for each in looked]
    compared = _mark_layers(compared)
    is_one_training = _is_one_training(compared, (reference.format, candidate.format))
    if is_one_training:
        note = "bit for bit as in the reference"
        compared = [
            replace(each, kind=PairKind.NOT_UPDATED, note=note)
            if each.kind is PairKind.EQUAL and each.pair.role is Role.PARAMETER
            else each
            for each in compared
        ]
    return CheckpointComparison(
        reference=str(reference.path),
        candidate=str(candidate.path),
        formats=(reference.format, candidate.format),
        pairs=tuple(sorted(compared, key=_suspicion)),
        only_reference=pairing.only_reference,
        only_candidate=pairing.only_candidate,
        is_one_training=is_one_training,
    )


def _measure(pair: TensorPair, reference: Checkpoint, candidate: Checkpoint) -> MeasuredPair:
    return measure_pair(pair, reference.tensor(pair.reference), candidate.tensor(pair.candidate))


def _with_pairs(pairing: Pairing, pairs: Sequence[TensorPair]) -> Pairing:
    reference, candidate = {each.reference for each in pairs}, {each.candidate for each in pairs}
    return Pairing(
        pairs=(*pairing.pairs, *pairs),
        only_reference=tuple(each for each in pairing.only_reference if each.name not in reference),
        only_candidate=tuple(each for each in pairing.only_candidate if each.name not in candidate),
    )


def _judge_pairs(
    looked: MeasuredPair,
    better: Mapping[str, TensorPair],
    partners: Mapping[str, str],
    reference: Checkpoint,
    candidate: Checkpoint,
) -> ComparedPair:
    """Return a pair after all were measured: corrected, or marked as swapped."""
    name = looked.compared.pair.reference
    if name in better:
        return _measure(better[name], reference, candidate).compared
    if name not in partners:
        return looked.compared
    note = f"the candidate has its values under '{partners[name]}'"
    return replace(looked.compared, kind=PairKind.SWAPPED, note=note, partner=partners[name])


def _mark_layers(compared: Sequence[ComparedPair]) -> list[ComparedPair]:
    """Mark a bias that differs as not loaded if the matrix of its layer is: alone it has too few values."""
    layers = {_layer(each) for each in compared if each.kind is PairKind.NOT_LOADED and len(each.shape) > 1}
    note = "as the matrix of its layer"
    return [
        replace(each, kind=PairKind.NOT_LOADED, note=note)
        if each.kind is PairKind.DIFFERENT and len(each.shape) == 1 and _layer(each) in layers
        else each
        for each in compared
    ]


def _layer(compared: ComparedPair) -> str:
    return compared.pair.reference.rpartition(".")[0]


def _is_one_training(compared: Sequence[ComparedPair], formats: tuple[str, str]) -> bool:
    parameters = [each for each in compared if each.pair.role is Role.PARAMETER]
    same_names = sum(each.pair.by is PairedBy.SAME_NAME for each in parameters)
    different = [each.distance for each in parameters if each.kind is PairKind.DIFFERENT]
    moved = sum(distance is not None and distance.cosine > RELATED_COSINE for distance in different)
    return formats[0] == formats[1] and 2 * moved > len(parameters) and same_names == len(parameters)


def _suspicion(compared: ComparedPair) -> tuple[int, float]:
    """Order by kind, then the largest relative difference first; non-finite values before all others."""
    far = compared.distance.relative if compared.distance else 0.0
    if compared.distance and compared.distance.num_nonfinite[0] != compared.distance.num_nonfinite[1]:
        far = math.inf
    return list(PairKind).index(compared.kind), -far


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """The reference of one pair has the values of another pair's candidate."""

    reference: TensorPair
    candidate: TensorPair


def find_swaps(looked: Iterable[MeasuredPair], reference: Checkpoint, candidate: Checkpoint) -> list[Swap]:
    """Compare every reference that differs from its candidate with the candidates of other pairs of its shape.

    Samples are compared first; only tensors whose samples agree are read again.
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
    """Return the guessed pairs that values correct; pairs of the same name stay.

    The partners that become free by that are paired in order.
    """
    guessed = {each.compared.pair.reference: each.compared.pair for each in looked if each.compared.pair.by.is_guess}
    right = [each for each in swaps if {each.reference.reference, each.candidate.reference} <= guessed.keys()]
    matched = {each.reference.reference for each in right}
    taken = {each.candidate.reference for each in right}
    lost = [pair for name, pair in guessed.items() if name in taken - matched]
    free = [pair for name, pair in guessed.items() if name in matched - taken]
    by_values = [_exchange_candidates(each.reference, each.candidate, by=PairedBy.VALUES) for each in right]
    return by_values + [
        _exchange_candidates(reference, candidate, by=reference.by)
        for reference, candidate in zip(lost, free, strict=True)
    ]


def leftovers_by_values(
    only_reference: Iterable[UnpairedTensor],
    only_candidate: Iterable[UnpairedTensor],
    reference: Checkpoint,
    candidate: Checkpoint,
) -> list[TensorPair]:
    """Pair tensors that are still unpaired and have the same values."""
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
    """Return the places of a reference and of another pair's candidate whose samples agree."""
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
    """Return for each row whether it is constant, and so says nothing: zeros are equal to any other zeros."""
    return (rows == rows[:, :1]).all(dim=1)


def _is_constant(values: Tensor) -> bool:
    return not values.numel() or bool(_are_constant(values[None])[0])


def _are_the_same(name: str, candidate_pair: TensorPair, reference: Checkpoint, candidate: Checkpoint) -> bool:
    first = reference.tensor(name)
    return (
        agreement(first, lay_out_like(candidate.tensor(candidate_pair.candidate), candidate_pair, tuple(first.shape)))
        is not None
    )


def _exchange_candidates(reference: TensorPair, candidate: TensorPair, *, by: PairedBy) -> TensorPair:
    """Return the pair of the one's reference and the other's candidate, with the candidate's axes."""
    return replace(candidate, reference=reference.reference, role=reference.role, by=by)
