"""Do the parts that ranks hold make up a whole tensor? Equal, a multiple, sums that were not added up, or neither."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from roundoff.compare.layouts.measured_tensor import (
    UNKNOWN,
    FactorFit,
    MeasuredTensor,
    fit,
    fit_arrays,
    fit_pieces,
    fit_sum,
)
from roundoff.compare.layouts.piece import Piece

_MAX_CLUSTERED = 32
"""More tensors of one part are not compared with each other."""


class Agreement(StrEnum):
    """How the parts relate to the whole."""

    EQUAL = "equal"
    SCALED = "scaled"
    """All are the same multiple of it."""
    UNEVEN = "scaled unevenly"
    """Each is a multiple of it, but not the same."""
    PARTIAL = "not reduced"
    """They differ where they should be the same, and their sum is (a multiple of) the whole."""
    DIFFERENT = "different"
    UNKNOWN = "not put together"


@dataclass(frozen=True, slots=True)
class PartHolder:
    """Ranks that have the same tensor, and which part of the whole it may be."""

    ranks: tuple[int, ...]
    tensor: MeasuredTensor
    pieces: tuple[Piece, ...]
    part: object
    """Holders of the same part have the same value here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartVerdict:
    """How the parts relate to the whole, and by which factor."""

    agreement: Agreement
    factor: float = 1.0
    """Of the parts, or of their sum where they were not reduced."""
    classes: tuple[tuple[int, ...], ...] = ()
    """Ranks with the same tensor, where those of different classes should have been reduced."""
    residual: float = 0.0
    """What no factor explains, as a part of the whole's norm."""
    why_not: str = ""
    """Why they could not be put together."""
    divided_dims: tuple[int, ...] = ()

    @property
    def is_mean(self) -> bool:
        """Whether the mean over the classes is the whole, not their sum."""
        return bool(self.classes) and abs(self.factor - len(self.classes)) < 1e-2 * len(self.classes)


def judge_parts(holders: Sequence[PartHolder], whole: MeasuredTensor, *, noise: float = 0.0) -> PartVerdict:
    """Say how parts relate to the whole; differences below `noise`, as a norm, count as none."""
    holders = [holder for holder in holders if holder.tensor.event.num_elements]
    if not holders:
        return PartVerdict(agreement=Agreement.UNKNOWN, why_not="no rank has it")
    tolerance = max(whole.tolerance, *(holder.tensor.tolerance for holder in holders))
    if whole.event.l2:
        tolerance = max(tolerance, noise / whole.event.l2)
    known = all(holder.pieces and _can_fit(holder, whole) for holder in holders)
    return _judge_values(holders, whole, tolerance) if known else _judge_sums(holders, whole, tolerance)


def _can_fit(holder: PartHolder, whole: MeasuredTensor) -> bool:
    if holder.tensor.shape == whole.shape:
        return True
    return holder.tensor.values is not None and whole.values is not None


def _cut(whole: MeasuredTensor, piece: Piece) -> MeasuredTensor:
    if piece.is_whole:
        return whole
    assert whole.values is not None
    return whole.with_values(piece.take(whole.values))


def _fit_piece(part: MeasuredTensor, whole: MeasuredTensor, piece: Piece) -> FactorFit:
    if piece.is_whole or part.values is None or whole.values is None:
        return fit(part, _cut(whole, piece))
    cut = piece.take(whole.values)
    return fit_arrays(part.values, cut) if part.shape == cut.shape else UNKNOWN


def _judge_values(holders: Sequence[PartHolder], whole: MeasuredTensor, tolerance: float) -> PartVerdict:
    fits, pieces = [], []
    for holder in holders:
        tried = [(_fit_piece(holder.tensor, whole, piece), piece) for piece in holder.pieces]
        best = min(tried, key=lambda pair: pair[0].residual)
        fits.append(best[0])
        pieces.append(best[1] if best[0].is_multiple(tolerance) else holder.pieces[0])
    dims = pieces[0].dims
    if all(found.is_equal(tolerance) for found in fits):
        return PartVerdict(agreement=Agreement.EQUAL, divided_dims=dims, residual=max(f.residual for f in fits))
    if all(found.is_multiple(tolerance) and found.factor for found in fits):
        return _verdict_of_factors(holders, fits, tolerance, dims)
    partial = _judge_sums_of_parts(holders, pieces, whole, tolerance)
    worst = max(fits, key=lambda found: found.residual)
    return partial or PartVerdict(
        agreement=Agreement.DIFFERENT, factor=worst.factor, residual=_distance(worst), divided_dims=dims
    )


def _distance(found: FactorFit) -> float:
    return math.hypot(found.residual, found.factor - 1) if math.isfinite(found.residual) else math.inf


def _verdict_of_factors(
    holders: Sequence[PartHolder], fits: Sequence[FactorFit], tolerance: float, dims: tuple[int, ...]
) -> PartVerdict:
    factors = [found.factor for found in fits]
    low, high = min(factors), max(factors)
    if high - low <= 2 * tolerance * max(abs(low), abs(high)):
        return PartVerdict(agreement=Agreement.SCALED, factor=sum(factors) / len(factors), divided_dims=dims)
    by_factor: dict[float, list[int]] = defaultdict(list)
    for holder, factor in zip(holders, factors, strict=True):
        near = next((known for known in by_factor if abs(known - factor) <= 2 * tolerance * abs(known)), factor)
        by_factor[near] += holder.ranks
    classes = tuple(tuple(ranks) for ranks in by_factor.values())
    return PartVerdict(agreement=Agreement.UNEVEN, factor=high, classes=classes, divided_dims=dims)


def _judge_sums_of_parts(
    holders: Sequence[PartHolder], pieces: Sequence[Piece], whole: MeasuredTensor, tolerance: float
) -> PartVerdict | None:
    """Find out whether what ranks hold of each part adds up to it."""
    by_piece: dict[Piece, list[PartHolder]] = defaultdict(list)
    for holder, piece in zip(holders, pieces, strict=True):
        by_piece[piece].append(holder)
    factors: list[float] = []
    all_classes: list[tuple[int, ...]] = []
    for piece, of_piece in by_piece.items():
        classes = _clusters(of_piece, tolerance)
        total = fit_sum([holder.tensor for holder, _ in classes], _cut(whole, piece))
        if len(classes) < 2 or not total.is_multiple(len(classes) * tolerance) or not total.factor:
            return None
        factors.append(total.factor)
        all_classes = all_classes or [ranks for _, ranks in classes]
    if max(factors) - min(factors) > 4 * tolerance * max(map(abs, factors)):
        return None
    return PartVerdict(
        agreement=Agreement.PARTIAL,
        factor=sum(factors) / len(factors),
        classes=tuple(all_classes),
        divided_dims=next(iter(by_piece)).dims,
    )


def _clusters(holders: Sequence[PartHolder], tolerance: float) -> list[tuple[PartHolder, tuple[int, ...]]]:
    """Put holders of nearly the same tensor together; return one of each and all their ranks."""
    found: list[tuple[PartHolder, tuple[int, ...]]] = []
    for holder in holders:
        for i, (other, ranks) in enumerate(found[:_MAX_CLUSTERED]):
            if fit(holder.tensor, other.tensor).is_equal(tolerance):
                found[i] = (other, (*ranks, *holder.ranks))
                break
        else:
            found.append((holder, holder.ranks))
    return found


def _judge_sums(holders: Sequence[PartHolder], whole: MeasuredTensor, tolerance: float) -> PartVerdict:
    """Say how parts relate to the whole without its values: by what adds up over parts."""
    by_part: dict[object, list[PartHolder]] = defaultdict(list)
    for holder in holders:
        by_part[holder.part].append(holder)
    if any(len(of_part) > 1 for of_part in by_part.values()):
        return PartVerdict(
            agreement=Agreement.UNKNOWN,
            why_not="ranks that hold the same part differ, and without whole tensors (record --level tensors) it is "
            "not known by what",
        )
    parts = [of_part[0].tensor for of_part in by_part.values()]
    if sum(part.event.num_elements for part in parts) != whole.event.num_elements:
        return PartVerdict(agreement=Agreement.UNKNOWN, why_not="the parts do not make up the whole")
    found = fit_pieces(parts, whole)
    if found.is_equal(tolerance):
        return PartVerdict(agreement=Agreement.EQUAL, residual=found.residual)
    if found.is_multiple(tolerance):
        return PartVerdict(agreement=Agreement.SCALED, factor=found.factor)
    return PartVerdict(agreement=Agreement.DIFFERENT, factor=found.factor, residual=_distance(found))
