"""Pairs the tensors that two programs saved, by map, name or order and shape, and finds the first that differs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from roundoff.checkpoints.checkpoint import StoredTensor
from roundoff.checkpoints.pair.layer_groups import without_ones
from roundoff.checkpoints.pair.pairing import expand_name_map
from roundoff.compare.shown_comparison import ShownComparison
from roundoff.compare.tensors.tensor_distance import TensorDistance
from roundoff.compare.tensors.tensor_files import DistanceCache, TensorSource, open_tensors
from roundoff.errors import CompareError
from roundoff.progress import counting

SavedPairedBy = Literal["map", "name", "order"]


class TensorVerdict(StrEnum):
    """The result of comparing a pair."""

    EQUAL = "equal"
    """Bit for bit."""
    EXPLAINED = "explained"
    """Different, but no more than the coarser format and earlier differences explain."""
    DIFFERENT = "different"
    OTHER_SHAPE = "other shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPair:
    """Two tensors with the same meaning, how far apart they are, and the verdict."""

    reference: str
    candidate: str
    by: SavedPairedBy
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    distance: TensorDistance | None
    """None if the shapes differ."""
    verdict: TensorVerdict

    @property
    def is_mismatch(self) -> bool:
        """Whether the two differ by more than formats explain."""
        return self.verdict in (TensorVerdict.DIFFERENT, TensorVerdict.OTHER_SHAPE)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TensorsComparison(ShownComparison):
    """Saved tensors of a reference and a candidate, pair by pair."""

    reference: str
    candidate: str
    pairs: tuple[JudgedPair, ...]
    """In the order in which the reference's were saved."""
    only_reference: tuple[StoredTensor, ...]
    only_candidate: tuple[StoredTensor, ...]

    @property
    def first(self) -> JudgedPair | None:
        """The first pair that differs by more than formats explain."""
        return next((pair for pair in self.pairs if pair.is_mismatch), None)

    @property
    def largest(self) -> JudgedPair | None:
        """The pair that is farthest apart for its format, of those that were measured and differ."""
        measured = [pair for pair in self.pairs if pair.distance and not pair.distance.is_equal]
        return max(measured, key=_ulps, default=None)

    @property
    def differs(self) -> bool:
        """Whether something differs by more than formats explain, or has no partner."""
        return self.first is not None or bool(self.only_reference or self.only_candidate)

    def of_verdict(self, *verdicts: TensorVerdict) -> list[JudgedPair]:
        """Return the pairs of these verdicts, in order."""
        return [pair for pair in self.pairs if pair.verdict in verdicts]


def compare_tensors(
    reference: TensorSource | Path | str,
    candidate: TensorSource | Path | str,
    *,
    name_map: Mapping[str, str] | None = None,
) -> TensorsComparison:
    """Line up the tensors of two folders (or files) and measure every pair, one at a time in memory.

    Files are `.npy`, `.npz`, `.pt` or `.safetensors`, from any program. Tensors are paired by `name_map` (from names in
    the reference to names in the candidate), by name, or by order and shape. A `CompareError` if nothing pairs.
    """
    reference_source, candidate_source = (
        x if isinstance(x, TensorSource) else open_tensors(x) for x in (reference, candidate)
    )
    pairs = pair_saved(reference_source.tensors, candidate_source.tensors, name_map=name_map)
    if not pairs:
        raise CompareError.explain(
            f"No tensor of '{reference_source.name}' lines up with one of '{candidate_source.name}'.",
            why="neither names nor shapes agree.",
            fix="say which is which: --map FILE, with lines 'name in REF = name in CAND'.",
        )
    only_reference, only_candidate = _unpaired_tensors(pairs, reference_source.tensors, candidate_source.tensors)
    return TensorsComparison(
        reference=reference_source.name,
        candidate=candidate_source.name,
        pairs=tuple(_measure_pairs(pairs)),
        only_reference=tuple(only_reference),
        only_candidate=tuple(only_candidate),
    )


def _measure_pairs(pairs: list[SavedPair]) -> Iterator[JudgedPair]:
    distances = DistanceCache()
    inherited = 0.0
    for pair in counting(pairs, "tensor"):
        reference, candidate = pair.reference, pair.candidate
        is_measurable = without_ones(reference.shape) == without_ones(candidate.shape)
        distance = distances.between(reference, candidate) if is_measurable else None
        verdict = _verdict(distance, inherited)
        if distance and verdict is TensorVerdict.EXPLAINED:
            inherited = max(inherited, distance.relative)
        yield JudgedPair(
            reference=reference.name,
            candidate=candidate.name,
            by=pair.by,
            shapes=(reference.shape, candidate.shape),
            dtypes=(reference.dtype, candidate.dtype),
            distance=distance,
            verdict=verdict,
        )


def _verdict(distance: TensorDistance | None, inherited: float) -> TensorVerdict:
    if distance is None:
        return TensorVerdict.OTHER_SHAPE
    if distance.is_equal:
        return TensorVerdict.EQUAL
    return TensorVerdict.EXPLAINED if distance.is_explained(inherited=inherited) else TensorVerdict.DIFFERENT


def _ulps(pair: JudgedPair) -> float:
    assert pair.distance is not None
    return float("inf") if pair.distance.num_unlike else pair.distance.ulps


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPair:
    """Two tensors with the same meaning, and what paired them."""

    reference: StoredTensor
    candidate: StoredTensor
    by: SavedPairedBy


def pair_saved(
    reference: Sequence[StoredTensor], candidate: Sequence[StoredTensor], *, name_map: Mapping[str, str] | None = None
) -> list[SavedPair]:
    """Line up two lists of tensors, in the order of the reference.

    Names are compared without the number that `save_tensor` puts before them and without the separators of their
    words; the nth tensor of a name belongs to the nth of the other side. Tensors without a matching name are paired by
    shape: the nth tensor of a shape with the nth. Tensors of the same name are a pair even if their shapes differ.
    """
    keys: tuple[tuple[SavedPairedBy, Callable[[StoredTensor], Hashable]], ...] = (
        ("name", lambda tensor: _drop_number(tensor.name)),
        ("name", lambda tensor: plain_name(tensor.name)),
        ("order", lambda tensor: without_ones(tensor.shape)),
    )
    pairs = _by_map(reference, candidate, name_map) if name_map else []
    for by, key in keys:
        pairs += _by_key(*_unpaired_tensors(pairs, reference, candidate), key=key, by=by)
    place = {id(tensor): number for number, tensor in enumerate(reference)}
    return sorted(pairs, key=lambda pair: place[id(pair.reference)])


def plain_name(name: str) -> str:
    """Return the part of a name that identifies a tensor.

    >>> plain_name("step1/00012-blocks_3.Out"), plain_name("step1/blocks.3/out")
    ('step1.blocks.3.out', 'step1.blocks.3.out')
    """
    return re.sub(r"[\W_]+", ".", _drop_number(name)).strip(".").casefold()


def _drop_number(name: str) -> str:
    """Return a name without the number of its file."""
    return re.sub(r"(^|/)[0-9]{5,}-([^/]*)$", r"\1\2", name)


def _by_map(
    reference: Sequence[StoredTensor], candidate: Sequence[StoredTensor], name_map: Mapping[str, str]
) -> list[SavedPair]:
    reference_tensors, candidate_tensors = ({tensor.name: tensor for tensor in side} for side in (reference, candidate))
    full_names = {
        _full_name(left, reference_tensors): _full_name(right, candidate_tensors) for left, right in name_map.items()
    }
    return [
        SavedPair(reference=reference_tensors[left], candidate=candidate_tensors[right], by="map")
        for left, right in expand_name_map(full_names, reference_tensors, candidate_tensors).items()
    ]


def _full_name(name: str, tensors: Iterable[str]) -> str:
    """Return the name with the number of its file, if it was given without."""
    full = [other for other in tensors if _drop_number(other) == name]
    return full[0] if name not in tensors and len(full) == 1 else name


def _unpaired_tensors(
    pairs: Sequence[SavedPair], reference: Sequence[StoredTensor], candidate: Sequence[StoredTensor]
) -> tuple[list[StoredTensor], list[StoredTensor]]:
    paired = {id(tensor) for pair in pairs for tensor in (pair.reference, pair.candidate)}
    return [x for x in reference if id(x) not in paired], [x for x in candidate if id(x) not in paired]


def _by_key(
    reference: Sequence[StoredTensor],
    candidate: Sequence[StoredTensor],
    *,
    key: Callable[[StoredTensor], Hashable],
    by: SavedPairedBy,
) -> list[SavedPair]:
    """Pair the nth tensor of a key with the nth of the other side."""
    waiting: dict[Hashable, list[StoredTensor]] = defaultdict(list)
    for tensor in reversed(candidate):
        waiting[key(tensor)].append(tensor)
    return [
        SavedPair(reference=tensor, candidate=waiting[key(tensor)].pop(), by=by)
        for tensor in reference
        if waiting[key(tensor)]
    ]
