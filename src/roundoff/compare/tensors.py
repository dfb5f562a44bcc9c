"""Compares tensors that two programs saved at the same places, and finds the first that differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from roundoff.compare.tensor_distance import TensorDistance, measure
from roundoff.compare.tensor_files import SavedTensor, TensorSource, open_tensors, tensors_of_step
from roundoff.compare.tensor_pairing import PairedBy, SavedPair, pair_saved, without_ones
from roundoff.errors import CompareError
from roundoff.runs import Run

HELD_BYTES = 64 * 2**20
"""Memory of mapped files is given back whenever so much of it was read."""


class Verdict(StrEnum):
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
    by: PairedBy
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    distance: TensorDistance | None
    """None where the shapes differ."""
    verdict: Verdict

    @property
    def is_mismatch(self) -> bool:
        """Whether the two differ by more than formats explain."""
        return self.verdict in (Verdict.DIFFERENT, Verdict.OTHER_SHAPE)


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

    def of_verdict(self, *verdicts: Verdict) -> list[TensorPair]:
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
    ours, theirs = (x if isinstance(x, TensorSource) else open_tensors(x) for x in (reference, candidate))
    pairs = pair_saved(ours.tensors, theirs.tensors, name_map=name_map)
    if not pairs:
        raise CompareError.explain(
            f"No tensor of '{ours.name}' lines up with one of '{theirs.name}'.",
            why="neither names nor shapes agree.",
            fix="say which is which: --map FILE, with lines 'name in REF = name in CAND'.",
        )
    paired = {id(tensor) for pair in pairs for tensor in (pair.reference, pair.candidate)}
    return TensorsComparison(
        reference=ours.name,
        candidate=theirs.name,
        pairs=tuple(_measured(pairs, ours, theirs)),
        only_reference=tuple(tensor for tensor in ours.tensors if id(tensor) not in paired),
        only_candidate=tuple(tensor for tensor in theirs.tensors if id(tensor) not in paired),
    )


def compare_tensor_runs(reference: Run, candidate: Run, *, step: int, rank: int = 0) -> TensorsComparison:
    """Compare the whole tensors that two runs kept of a step (`level="tensors"`), in the order of the step."""
    ours, theirs = (tensors_of_step(run, step, rank=rank) for run in (reference, candidate))
    return compare_tensors(ours, theirs)


def _measured(pairs: list[SavedPair], *sources: TensorSource) -> Iterator[TensorPair]:
    known: dict[tuple[str, str], TensorDistance] = {}
    num_bytes, inherited = 0, 0.0
    for pair in pairs:
        ours, theirs = pair.reference, pair.candidate
        contents = ours.content, theirs.content
        is_measurable = without_ones(ours.shape) == without_ones(theirs.shape)
        if is_measurable and contents not in known:
            tensors = ours.read(), theirs.read()
            known[contents] = measure(tensors[0], tensors[1].reshape(ours.shape))
            num_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            del tensors
        if num_bytes > HELD_BYTES:
            for source in sources:
                source.let_go()
            num_bytes = 0
        distance = known.get(contents) if is_measurable else None
        verdict = _verdict(distance, inherited)
        if distance and verdict is Verdict.EXPLAINED:
            inherited = max(inherited, distance.relative)
        yield TensorPair(
            reference=ours.name,
            candidate=theirs.name,
            by=pair.by,
            shapes=(ours.shape, theirs.shape),
            dtypes=(ours.dtype, theirs.dtype),
            distance=distance,
            verdict=verdict,
        )


def _verdict(distance: TensorDistance | None, inherited: float) -> Verdict:
    if distance is None:
        return Verdict.OTHER_SHAPE
    if distance.is_equal:
        return Verdict.EQUAL
    return Verdict.EXPLAINED if distance.is_explained(inherited=inherited) else Verdict.DIFFERENT


def _ulps(pair: TensorPair) -> float:
    assert pair.distance is not None
    return float("inf") if pair.distance.num_unlike else pair.distance.ulps
