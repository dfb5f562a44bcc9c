"""Pairs the tensors that two programs saved, by map, name or order and shape, and finds the first that differs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from roundoff.checkpoints.pair.name_map import expand_name_map
from roundoff.compare.tensors.tensor_distance import TensorDistance, measure_distance
from roundoff.compare.tensors.tensor_files import SavedTensor, TensorSource, open_tensors, tensors_of_step
from roundoff.errors import CompareError
from roundoff.runs import Run

SavedPairedBy = Literal["map", "name", "order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPair:
    """Two tensors that stand for the same thing, and what says so."""

    reference: SavedTensor
    candidate: SavedTensor
    by: SavedPairedBy


def pair_saved(
    reference: Sequence[SavedTensor], candidate: Sequence[SavedTensor], *, name_map: Mapping[str, str] | None = None
) -> list[SavedPair]:
    """Line up two lists of tensors, in the order of the reference.

    Names count without the number that `save_tensor` put before them, and whatever stands between their words; the nth
    tensor of a name belongs to the nth of the other side. What no name fits is lined up by shape: the nth tensor of a
    shape to the nth. Those with the same name are a pair even if their shapes differ.
    """
    pairs = _by_map(reference, candidate, name_map) if name_map else []
    pairs += _by_key(
        *_unpaired_tensors(pairs, reference, candidate), key=lambda tensor: _drop_number(tensor.name), by="name"
    )
    pairs += _by_key(
        *_unpaired_tensors(pairs, reference, candidate), key=lambda tensor: plain_name(tensor.name), by="name"
    )
    pairs += _by_key(
        *_unpaired_tensors(pairs, reference, candidate), key=lambda tensor: without_ones(tensor.shape), by="order"
    )
    place = {id(tensor): number for number, tensor in enumerate(reference)}
    return sorted(pairs, key=lambda pair: place[id(pair.reference)])


def plain_name(name: str) -> str:
    """Return what of a name tells tensors apart.

    >>> plain_name("step1/00012-blocks_3.Out"), plain_name("step1/blocks.3/out")
    ('step1.blocks.3.out', 'step1.blocks.3.out')
    """
    return re.sub(r"[\W_]+", ".", _drop_number(name)).strip(".").casefold()


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its dimensions of 1: (1, 3, 1) and (3,) hold the same in the same order."""
    return tuple(size for size in shape if size != 1)


def _drop_number(name: str) -> str:
    """Return a name without the number of its file."""
    return re.sub(r"(^|/)[0-9]{5,}-([^/]*)$", r"\1\2", name)


def _by_map(
    reference: Sequence[SavedTensor], candidate: Sequence[SavedTensor], name_map: Mapping[str, str]
) -> list[SavedPair]:
    reference_tensors, candidate_tensors = ({tensor.name: tensor for tensor in side} for side in (reference, candidate))
    told = {
        _full_name(left, reference_tensors): _full_name(right, candidate_tensors) for left, right in name_map.items()
    }
    return [
        SavedPair(reference=reference_tensors[left], candidate=candidate_tensors[right], by="map")
        for left, right in expand_name_map(told, reference_tensors, candidate_tensors).items()
    ]


def _full_name(name: str, tensors: Iterable[str]) -> str:
    """Return the name with the number of its file, where it was given without."""
    full = [other for other in tensors if _drop_number(other) == name]
    return full[0] if name not in tensors and len(full) == 1 else name


def _unpaired_tensors(
    pairs: Sequence[SavedPair], reference: Sequence[SavedTensor], candidate: Sequence[SavedTensor]
) -> tuple[list[SavedTensor], list[SavedTensor]]:
    reference_paired, candidate_paired = {id(pair.reference) for pair in pairs}, {id(pair.candidate) for pair in pairs}
    return [x for x in reference if id(x) not in reference_paired], [
        x for x in candidate if id(x) not in candidate_paired
    ]


def _by_key(
    reference: Sequence[SavedTensor],
    candidate: Sequence[SavedTensor],
    *,
    key: Callable[[SavedTensor], Hashable],
    by: SavedPairedBy,
) -> list[SavedPair]:
    """Pair the nth tensor of a key with the nth of the other side."""
    waiting: dict[Hashable, list[SavedTensor]] = defaultdict(list)
    for tensor in reversed(candidate):
        waiting[key(tensor)].append(tensor)
    return [
        SavedPair(reference=tensor, candidate=waiting[key(tensor)].pop(), by=by)
        for tensor in reference
        if waiting[key(tensor)]
    ]


HELD_BYTES = 64 * 2**20
"""Memory of mapped files is given back whenever so much of it was read."""


class TensorVerdict(StrEnum):
    """What is the matter with a pair."""

    EQUAL = "equal"
    """Bit for bit."""
    EXPLAINED = "explained"
    """Different, but not more than the coarser format and what came before explain."""
    DIFFERENT = "different"
    OTHER_SHAPE = "other shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPair:
    """Two tensors that stand for the same thing, and how far apart they are."""

    reference: str
    candidate: str
    by: SavedPairedBy
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    distance: TensorDistance | None
    """None where the shapes differ."""
    verdict: TensorVerdict

    @property
    def is_mismatch(self) -> bool:
        """Whether the two differ by more than formats explain."""
        return self.verdict in (TensorVerdict.DIFFERENT, TensorVerdict.OTHER_SHAPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorsComparison:
    """Saved tensors of a reference and a candidate, pair by pair."""

    reference: str
    candidate: str
    pairs: tuple[TensorPair, ...]
    """In the order in which the reference's were saved."""
    only_reference: tuple[SavedTensor, ...]
    only_candidate: tuple[SavedTensor, ...]

    @property
    def first(self) -> TensorPair | None:
        """The first pair that differs by more than formats explain."""
        return next((pair for pair in self.pairs if pair.is_mismatch), None)

    @property
    def largest(self) -> TensorPair | None:
        """The pair that is farthest apart for its format, of those that can be measured and differ."""
        measured = [pair for pair in self.pairs if pair.distance and not pair.distance.is_equal]
        return max(measured, key=_ulps, default=None)

    @property
    def differs(self) -> bool:
        """Whether something differs by more than formats explain, or has no partner."""
        return self.first is not None or bool(self.only_reference or self.only_candidate)

    def of_verdict(self, *verdicts: TensorVerdict) -> list[TensorPair]:
        """Return the pairs of these verdicts, in order."""
        return [pair for pair in self.pairs if pair.verdict in verdicts]


def compare_tensors(
    reference: TensorSource | Path | str,
    candidate: TensorSource | Path | str,
    *,
    name_map: Mapping[str, str] | None = None,
) -> TensorsComparison:
    """Line up the tensors of two folders (or files) and measure every pair, one at a time in memory.

    Files are `.npy`, `.npz`, `.pt` or `.safetensors`, whoever wrote them. Pairs are told by name, else by order and
    shape, or by `name_map`, from names in the reference to names in the candidate. A `CompareError` if nothing pairs.
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
    paired = {id(tensor) for pair in pairs for tensor in (pair.reference, pair.candidate)}
    return TensorsComparison(
        reference=reference_source.name,
        candidate=candidate_source.name,
        pairs=tuple(_measure_pairs(pairs, reference_source, candidate_source)),
        only_reference=tuple(tensor for tensor in reference_source.tensors if id(tensor) not in paired),
        only_candidate=tuple(tensor for tensor in candidate_source.tensors if id(tensor) not in paired),
    )


def compare_tensor_runs(reference: Run, candidate: Run, *, step: int, rank: int = 0) -> TensorsComparison:
    """Compare the whole tensors that two runs kept of a step (`level="tensors"`), in the order of the step."""
    reference_source, candidate_source = (tensors_of_step(run, step, rank=rank) for run in (reference, candidate))
    return compare_tensors(reference_source, candidate_source)


def _measure_pairs(pairs: list[SavedPair], *sources: TensorSource) -> Iterator[TensorPair]:
    known: dict[tuple[str, str], TensorDistance] = {}
    num_bytes, inherited = 0, 0.0
    for pair in pairs:
        reference, candidate = pair.reference, pair.candidate
        contents = reference.content, candidate.content
        is_measurable = without_ones(reference.shape) == without_ones(candidate.shape)
        if is_measurable and contents not in known:
            tensors = reference.read(), candidate.read()
            known[contents] = measure_distance(tensors[0], tensors[1].reshape(reference.shape))
            num_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            del tensors
        if num_bytes > HELD_BYTES:
            for source in sources:
                source.let_go()
            num_bytes = 0
        distance = known.get(contents) if is_measurable else None
        verdict = _verdict(distance, inherited)
        if distance and verdict is TensorVerdict.EXPLAINED:
            inherited = max(inherited, distance.relative)
        yield TensorPair(
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


def _ulps(pair: TensorPair) -> float:
    assert pair.distance is not None
    return float("inf") if pair.distance.num_unlike else pair.distance.ulps
