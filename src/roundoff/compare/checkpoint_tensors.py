"""How far apart two tensors of one shape are, and whether their formats explain it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

CHUNK = 1 << 18
"""Elements looked at together: what is computed of them stays in the processor's second cache."""
NUM_SAMPLES = 64


class Agreement(StrEnum):
    """How two tensors agree."""

    EQUAL = "equal"
    ROUNDED = "rounded"
    """One is what the other becomes in a narrower format, or within one rounding of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far a candidate is from its reference, over the elements that are finite in both."""

    max_abs: float
    relative: float
    """The norm of the difference over the norm of the reference."""
    cosine: float
    """Of the angle between the two; NaN if one of them is zero."""
    num_nonfinite: tuple[int, int]
    """NaN and infinities of the reference and of the candidate."""


def agreement(
    reference: Tensor, candidate: Tensor, *, sampled: tuple[Tensor, Tensor] | None = None
) -> tuple[Agreement, torch.dtype] | None:
    """Say whether two tensors are equal, or are after rounding to which dtype; None if they differ beyond that.

    `sampled` are samples of the two, where somebody has them already.
    """
    if reference.dtype == candidate.dtype and _same_bits(reference, candidate):
        return Agreement.EQUAL, reference.dtype
    if not (reference.is_floating_point() and candidate.is_floating_point()):
        wide = torch.float64 if reference.is_floating_point() or candidate.is_floating_point() else torch.int64
        same = not _are_complex(reference, candidate) and torch.equal(reference.to(wide), candidate.to(wide))
        return (Agreement.EQUAL, reference.dtype) if same else None
    ours, theirs = sampled or (samples(reference), samples(candidate))
    possible = _possible_roundings(reference.dtype, candidate.dtype)
    if not alike(ours, theirs, possible[-1]):
        return None
    for dtype in possible:
        if alike(ours, theirs, dtype) and _all_within(reference, candidate, dtype):
            return Agreement.ROUNDED, dtype
    return None


def distance(reference: Tensor, candidate: Tensor) -> Distance:
    """Measure two tensors of one shape, in pieces that stay in the cache."""
    largest = square = ours = theirs = product = 0.0
    bad = [0, 0]
    for first, second in zip(_pieces(reference), _pieces(candidate), strict=True):
        a, b = _wide(first, second)
        difference = b - a
        sums = [float(torch.dot(x, y)) for x, y in ((difference, difference), (a, a), (b, b), (a, b))]
        if not all(map(math.isfinite, sums)):
            a, b, num_bad = _finite_part(a.double(), b.double())
            bad = [count + more for count, more in zip(bad, num_bad, strict=True)]
            difference = b - a
            sums = [float(torch.dot(x, y)) for x, y in ((difference, difference), (a, a), (b, b), (a, b))]
        if difference.numel():
            low, high = torch.aminmax(difference)
            largest = max(largest, float(high), -float(low))
        square, ours, theirs, product = map(float.__add__, (square, ours, theirs, product), sums)
    norms = math.sqrt(ours) * math.sqrt(theirs)
    return Distance(
        max_abs=largest,
        relative=math.sqrt(square / ours) if ours else math.inf if square else 0.0,
        cosine=product / norms if norms else math.nan,
        num_nonfinite=(bad[0], bad[1]),
    )


def samples(tensor: Tensor) -> Tensor:
    """Return some values spread over a tensor, in fp64: two tensors whose samples differ differ."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    num, last = min(NUM_SAMPLES, tensor.numel()), tensor.numel() - 1
    places = torch.arange(num).mul_(last).div_(max(1, num - 1), rounding_mode="floor")
    if tensor.is_contiguous() or tensor.numel() < CHUNK:
        return tensor.reshape(-1)[places].double()
    return tensor[torch.unravel_index(places, tensor.shape)].double()


def alike(reference: Tensor, candidate: Tensor, dtype: torch.dtype) -> bool:
    """Say whether samples of two tensors could be the same values, kept in `dtype`."""
    return bool(near(reference, candidate, dtype).all())


def near(reference: Tensor, candidate: Tensor, dtype: torch.dtype) -> Tensor:
    """Say of which elements the difference is within one spacing of the numbers of `dtype`, also of the smallest."""
    info = torch.finfo(dtype if dtype.is_floating_point else torch.float64)
    return torch.isclose(reference, candidate, rtol=info.eps, atol=info.smallest_normal * info.eps, equal_nan=True)


def coarser(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """Return the one with the larger spacing of numbers."""
    if not (first.is_floating_point and second.is_floating_point):
        return first
    return max(first, second, key=lambda dtype: torch.finfo(dtype).eps)


def _same_bits(first: Tensor, second: Tensor) -> bool:
    """Compare bits, so that a NaN is equal to itself, and where that fails values, so that -0 is equal to 0."""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(first.element_size())
    if whole is not None and torch.equal(first.contiguous().view(whole), second.contiguous().view(whole)):
        return True
    return first.element_size() > 1 and torch.equal(first, second)


def _are_complex(*tensors: Tensor) -> bool:
    return any(tensor.is_complex() for tensor in tensors)


def _possible_roundings(reference: torch.dtype, candidate: torch.dtype) -> list[torch.dtype]:
    """List the formats whose rounding may explain a difference, the coarsest last: also one that both are wider than.

    A checkpoint that was saved in fp16 once and widened again has values of fp16.
    """
    own = coarser(reference, candidate)
    narrower = (torch.float16, torch.bfloat16)
    return [own, *(dtype for dtype in narrower if torch.finfo(dtype).eps > torch.finfo(own).eps)]


def _all_within(reference: Tensor, candidate: Tensor, dtype: torch.dtype) -> bool:
    """Say whether every element is within one rounding; a format that neither side has must explain it exactly."""
    foreign = dtype not in (reference.dtype, candidate.dtype)
    for first, second in zip(_pieces(reference), _pieces(candidate), strict=True):
        a, b = _wide(first, second)
        if foreign:
            if not (torch.equal(a.to(dtype).to(a.dtype), b) or torch.equal(b.to(dtype).to(b.dtype), a)):
                return False
        elif not alike(a, b, dtype):
            return False
    return True


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    pieces: Sequence[Tensor] = tensor.reshape(-1).split(CHUNK)
    return pieces


def _wide(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if torch.float64 in (first.dtype, second.dtype) else torch.float32
    return first.to(wide), second.to(wide)


def _finite_part(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
    are_finite = torch.isfinite(first), torch.isfinite(second)
    both = are_finite[0] & are_finite[1]
    return first[both], second[both], (int((~are_finite[0]).sum()), int((~are_finite[1]).sum()))
