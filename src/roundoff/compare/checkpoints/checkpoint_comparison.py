"""What differs between two checkpoints, and what looks wrong about it, the most suspicious first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from roundoff.checkpoints.checkpoint import Checkpoint, Role
from roundoff.checkpoints.pair.layer_matching import PairedBy
from roundoff.checkpoints.pair.pairing import Pairing, TensorPair, pair_checkpoints
from roundoff.checkpoints.pair.unpaired_tensors import UnpairedTensor
from roundoff.compare.checkpoints.compared_pair import ComparedPair, MeasuredPair, PairKind, measure_pair
from roundoff.compare.checkpoints.swaps import corrected_pairs, find_swaps, leftovers_by_values
from roundoff.runs import JsonValue

SUSPICIOUS = (PairKind.NOT_LOADED, PairKind.NOT_UPDATED, PairKind.TRANSPOSED, PairKind.SWAPPED, PairKind.DIFFERENT)
RELATED_COSINE = 0.5
"""Two states of one parameter point the same way; unrelated ones are far below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointComparison:
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
        """Return it as JSON has it."""
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

    A pair that names had let one guess only, and that values show to be wrong, is put right. Tolerances are those of
    the coarser of two dtypes, nothing else.
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
    looked = [_measure(each, reference, candidate) for each in pairing.pairs]
    swaps = find_swaps(looked, reference, candidate)
    better = {each.reference: each for each in corrected_pairs(swaps, looked)}
    partners = {each.reference.reference: each.candidate.candidate for each in swaps}
    compared = [_judge_pairs(each, better, partners, reference, candidate) for each in looked]
    compared = _mark_layers(compared)
    is_one_training = _is_one_training(compared, (reference.format, candidate.format))
    if is_one_training:
        compared = [_mark_not_updated(each) for each in compared]
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
    """Return a pair as it is after all have been seen: put right, or known to be swapped."""
    name = looked.compared.pair.reference
    if name in better:
        return _measure(better[name], reference, candidate).compared
    if name not in partners:
        return looked.compared
    note = f"the candidate has its values under '{partners[name]}'"
    return replace(looked.compared, kind=PairKind.SWAPPED, note=note, partner=partners[name])


def _mark_layers(compared: Sequence[ComparedPair]) -> list[ComparedPair]:
    """Count a bias that differs as not loaded where the matrix of its layer is not: alone it has too few values."""
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
    moved = sum(_has_moved(each) for each in parameters)
    return formats[0] == formats[1] and 2 * moved > len(parameters) and same_names == len(parameters)


def _has_moved(compared: ComparedPair) -> bool:
    if compared.kind is not PairKind.DIFFERENT or compared.distance is None:
        return False
    return compared.distance.cosine > RELATED_COSINE


def _mark_not_updated(compared: ComparedPair) -> ComparedPair:
    if compared.kind is PairKind.EQUAL and compared.pair.role is Role.PARAMETER:
        return replace(compared, kind=PairKind.NOT_UPDATED, note="bit for bit as in the reference")
    return compared


def _suspicion(compared: ComparedPair) -> tuple[int, float]:
    """Order by kind, then the largest relative difference first; one that is no number before all others."""
    far = compared.distance.relative if compared.distance else 0.0
    if compared.distance and compared.distance.num_nonfinite[0] != compared.distance.num_nonfinite[1]:
        far = math.inf
    return list(PairKind).index(compared.kind), -far
