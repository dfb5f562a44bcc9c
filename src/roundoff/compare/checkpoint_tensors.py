"""Whether two tensors of one shape are the same, and whether their formats explain what differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor

from roundoff.kernels.differences import Difference, difference

CHUNK = 1 << 18
"""Elements looked at together: what is computed of them stays in the processor's second cache."""
NUM_SAMPLES = 64


class Agreement(StrEnum):
    """How two tensors agree."""

    EQUAL = "equal"
    ROUNDED = "rounded"
    """One is what the other becomes in a narrower format, or within one rounding of it."""


def agreement(
    reference: Tensor, candidate: Tensor, *, found: Difference | None = None
) -> tuple[Agreement, torch.dtype] | None:
    """Say whether two tensors are equal, or are after rounding to which dtype; None if they differ beyond that.

    A NaN is equal to itself, and -0 to 0. `found` is their difference, where somebody has measured it already.
    """
    found = found or difference(reference, candidate)
    are_floats = reference.is_floating_point() and candidate.is_floating_point()
    # Whole numbers are measured as fp64, which does not tell the largest of them apart.
    is_exact = are_floats or reference.dtype != candidate.dtype
    if found.is_same_bits or (is_exact and not found.num_different and not found.num_unlike):
        return Agreement.EQUAL, reference.dtype
    if not are_floats:
        return None
    for dtype in _possible_roundings(reference.dtype, candidate.dtype):
        if _may_explain(dtype, found, reference.numel()) and _all_within(reference, candidate, dtype):
            return Agreement.ROUNDED, dtype
    return None


def _may_explain(dtype: torch.dtype, found: Difference, num_elements: int) -> bool:
    """Say whether a difference is no larger than if every element were one spacing of `dtype` off."""
    info = torch.finfo(dtype)
    of_values = info.eps * math.sqrt(max(found.squares))
    return found.norm <= 1.01 * (of_values + math.sqrt(num_elements) * info.smallest_normal * info.eps)


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


def _possible_roundings(reference: torch.dtype, candidate: torch.dtype) -> list[torch.dtype]:
    """List the formats whose rounding may explain a difference: also one that both are wider than.

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
