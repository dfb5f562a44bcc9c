"""One pair of tensors of two checkpoints: the same, explained by formats, still at its initial values, or different."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from roundoff.checkpoints.pair.layer_groups import Axes
from roundoff.checkpoints.pair.pairing import TensorPair
from roundoff.compare.initialisers import known_initialiser
from roundoff.kernels.differences import Difference, difference
from roundoff.runs import JsonValue

MIN_VALUES = 64
"""Fewer values do not show what they were drawn from."""
ENOUGH_VALUES = 1 << 20
_MAX_OF_UNIFORM, _MIN_OF_NORMAL = 1.8, 2.2
"""The largest magnitude of values over their standard deviation; in between, the distribution is not clear."""


def find_initialiser(values: Tensor) -> str | None:
    """Name the initialiser that values of PyTorch's layout look drawn from, or None.

    Weights that a training changed a lot rarely look like that; those it changed little do: check a reference, too.

    >>> find_initialiser(torch.full((8,), 1.0))
    'constant 1'
    >>> find_initialiser(torch.rand(64, 32, generator=torch.Generator().manual_seed(0)) / 4 - 1 / 8)
    >>> find_initialiser((torch.rand(64, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1) / 32**0.5)
    'kaiming uniform'
    """
    constant = constant_value(values)
    if constant is not None:
        return f"constant {constant:g}"
    if values.ndim < 2 or values.numel() < MIN_VALUES or not values.is_floating_point():
        return None
    wide = values.reshape(-1)[:ENOUGH_VALUES].to(torch.float64)
    std, largest = float(wide.std()), float(wide.abs().max())
    if not (std and math.isfinite(largest)) or _MAX_OF_UNIFORM <= largest / std <= _MIN_OF_NORMAL:
        return None
    return known_initialiser(values.shape, mean=float(wide.mean()), std=std, absmax=largest, num_values=wide.numel())


def constant_value(values: Tensor) -> float | None:
    """Return the one value that a tensor has everywhere, or None; a single number is none."""
    flat = values.reshape(-1)
    if values.numel() < 2 or bool((flat[:MIN_VALUES] != flat[0]).any()):  # the first values decide for most tensors
        return None
    return float(flat[0]) if bool((flat == flat[0]).all()) else None


CHUNK = 1 << 18
"""Elements processed together: intermediate results stay in the L2 cache."""
NUM_SAMPLES = 64


class ValueAgreement(StrEnum):
    """How two tensors agree."""

    EQUAL = "equal"
    ROUNDED = "rounded"
    """One is the other rounded to a narrower format, or within one rounding of it."""


def agreement(
    reference: Tensor, candidate: Tensor, *, found: Difference | None = None
) -> tuple[ValueAgreement, torch.dtype] | None:
    """Return how two tensors agree: equal, or equal after rounding to a dtype; None if they differ by more.

    A NaN is equal to itself, and -0 to 0. `found` is their difference, if it was measured before.
    """
    found = found or difference(reference, candidate)
    are_floats = reference.is_floating_point() and candidate.is_floating_point()
    # Integers are measured as fp64, in which the largest of them are not distinct.
    is_exact = are_floats or reference.dtype != candidate.dtype
    if found.is_same_bits or (is_exact and not found.num_different and not found.num_unlike):
        return ValueAgreement.EQUAL, reference.dtype
    if not are_floats:
        return None
    for dtype in _possible_roundings(reference.dtype, candidate.dtype):
        if _may_explain(dtype, found, reference.numel()) and _all_within(reference, candidate, dtype):
            return ValueAgreement.ROUNDED, dtype
    return None


def _may_explain(dtype: torch.dtype, found: Difference, num_elements: int) -> bool:
    """Return whether a difference is no larger than if every element were one spacing of `dtype` off."""
    info = torch.finfo(dtype)
    of_values = info.eps * math.sqrt(max(found.squares))
    return found.norm <= 1.01 * (of_values + math.sqrt(num_elements) * info.smallest_normal * info.eps)


def sample_values(tensor: Tensor) -> Tensor:
    """Return some values spread over a tensor, in fp64: two tensors whose samples differ differ."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    num, last = min(NUM_SAMPLES, tensor.numel()), tensor.numel() - 1
    places = torch.arange(num).mul_(last).div_(max(1, num - 1), rounding_mode="floor")
    if tensor.is_contiguous() or tensor.numel() < CHUNK:
        return tensor.reshape(-1)[places].double()
    return tensor[torch.unravel_index(places, tensor.shape)].double()


def samples_agree(reference: Tensor, candidate: Tensor, dtype: torch.dtype) -> bool:
    """Return whether samples of two tensors could be the same values, kept in `dtype`."""
    return bool(near(reference, candidate, dtype).all())


def near(reference: Tensor, candidate: Tensor, dtype: torch.dtype) -> Tensor:
    """Return for each element whether the difference is within one spacing of `dtype`, also for subnormal numbers."""
    info = torch.finfo(dtype if dtype.is_floating_point else torch.float64)
    return torch.isclose(reference, candidate, rtol=info.eps, atol=info.smallest_normal * info.eps, equal_nan=True)


def coarser_dtype(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """Return the dtype with the larger spacing of numbers."""
    if not (first.is_floating_point and second.is_floating_point):
        return first
    return max(first, second, key=lambda dtype: torch.finfo(dtype).eps)


def _possible_roundings(reference: torch.dtype, candidate: torch.dtype) -> list[torch.dtype]:
    """List the formats whose rounding may explain a difference, also narrower ones than both.

    A checkpoint that was once saved in fp16 and widened again has values of fp16.
    """
    own = coarser_dtype(reference, candidate)
    narrower = (torch.float16, torch.bfloat16)
    return [own, *(dtype for dtype in narrower if torch.finfo(dtype).eps > torch.finfo(own).eps)]


def _all_within(reference: Tensor, candidate: Tensor, dtype: torch.dtype) -> bool:
    """Return whether every element is within one rounding; a format that neither side has must explain it exactly."""
    foreign = dtype not in (reference.dtype, candidate.dtype)
    for first, second in zip(_pieces(reference), _pieces(candidate), strict=True):
        a, b = _wide(first, second)
        if foreign:
            if not (torch.equal(a.to(dtype).to(a.dtype), b) or torch.equal(b.to(dtype).to(b.dtype), a)):
                return False
        elif not samples_agree(a, b, dtype):
            return False
    return True


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    pieces: Sequence[Tensor] = tensor.reshape(-1).split(CHUNK)
    return pieces


def _wide(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if torch.float64 in (first.dtype, second.dtype) else torch.float32
    return first.to(wide), second.to(wide)


class PairKind(StrEnum):
    """What can be wrong with a tensor, the most suspicious first."""

    NOT_LOADED = "not loaded"
    """It looks like a layer's initial values, and unrelated to the reference."""
    NOT_UPDATED = "not updated"
    """It is unchanged, while most others have moved."""
    TRANSPOSED = "transposed"
    """It is equal with other axes than the layouts require."""
    SWAPPED = "swapped"
    """Another tensor of the candidate has these values."""
    DIFFERENT = "different"
    ROUNDED = "rounded"
    """It is equal up to rounding to the narrower of the two formats."""
    EQUAL = "equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPair:
    """Two tensors, what is wrong, and how far apart they are."""

    pair: TensorPair
    kind: PairKind
    shape: tuple[int, ...]
    dtypes: tuple[str, str]
    """Of the reference and of the candidate, as torch calls them."""
    note: str = ""
    """More details in a few words."""
    distance: Difference | None = None
    """None if the two are equal."""
    partner: str | None = None
    """The candidate's tensor that has the values of the reference, if they are swapped."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return it as a JSON object."""
        axes = self.pair.axes
        return {
            "kind": self.kind.value,
            "reference": self.pair.reference,
            "candidate": self.pair.candidate,
            "role": self.pair.role.value,
            "paired_by": self.pair.by.value,
            "axes": None if axes is None else list(axes),
            "shape": list(self.shape),
            "dtypes": list(self.dtypes),
            "note": self.note,
            "partner": self.partner,
            "relative": self.distance.relative if self.distance else 0.0,
            "max_abs": self.distance.largest if self.distance else 0.0,
            "cosine": self.distance.cosine if self.distance else 1.0,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPair:
    """A pair after the first comparison, with samples of both if they differ, for finding swaps."""

    compared: ComparedPair
    samples: tuple[Tensor, Tensor] | None = None


def lay_out_like(candidate: Tensor, pair: TensorPair, shape: tuple[int, ...]) -> Tensor:
    """Give a candidate's tensor the axes and the shape of its reference."""
    laid = candidate if pair.axes is None else candidate.permute(pair.axes)
    return laid.reshape(shape).contiguous()


def measure_pair(pair: TensorPair, reference: Tensor, candidate: Tensor) -> MeasuredPair:
    """Compare two tensors; `candidate` is still in its own layout."""
    laid = lay_out_like(candidate, pair, tuple(reference.shape))
    far = difference(reference, laid)

    def result(kind: PairKind, note: str = "", *, distance: Difference | None = None) -> MeasuredPair:
        shape, dtypes = tuple(reference.shape), (_name(reference.dtype), _name(laid.dtype))
        return MeasuredPair(
            compared=ComparedPair(pair=pair, kind=kind, shape=shape, dtypes=dtypes, note=note, distance=distance)
        )

    agreed = agreement(reference, laid, found=far)
    if agreed is not None and not pair.is_expected:
        note = "only the shapes require it" if pair.axes else "the layouts require other axes"
        return result(PairKind.TRANSPOSED, note)
    if agreed is not None and agreed[0] is ValueAgreement.EQUAL:
        return result(PairKind.EQUAL)
    if agreed is not None:
        return result(PairKind.ROUNDED, f"to {_name(agreed[1])}", distance=far)
    samples = sample_values(reference), sample_values(laid)
    for axes in _other_axes(reference, laid, samples[0]):
        if agreement(reference, laid.permute(axes)) is not None:
            return result(PairKind.TRANSPOSED, f"equal with its axes as {axes}")
    if not (reference.is_floating_point() and laid.is_floating_point()):
        return result(PairKind.DIFFERENT, f"{far.num_different} of {reference.numel()} values")
    return replace(result(*_why_different(reference, laid, far), distance=far), samples=samples)


def _why_different(reference: Tensor, laid: Tensor, far: Difference) -> tuple[PairKind, str]:
    reference_bad, candidate_bad = far.num_nonfinite
    if reference_bad != candidate_bad:
        return PairKind.DIFFERENT, f"{candidate_bad} of its values are not finite, {reference_bad} of the reference's"
    constants = constant_value(reference), constant_value(laid)
    if constants[1] is not None and constants[0] is None:
        return PairKind.NOT_LOADED, f"every value is {constants[1]:g}"
    is_unrelated = math.isnan(far.cosine) or abs(far.cosine) < 5 / math.sqrt(reference.numel())
    if not is_unrelated or reference.numel() < MIN_VALUES:
        return PairKind.DIFFERENT, ""
    start = find_initialiser(laid)
    if start is None:
        return PairKind.DIFFERENT, "the two have nothing in common"
    if find_initialiser(reference) is not None:
        return PairKind.DIFFERENT, "both look like start values, of different seeds"
    return PairKind.NOT_LOADED, f"it looks like initial values: {start}"


def _other_axes(reference: Tensor, laid: Tensor, sampled: Tensor) -> Iterator[Axes]:
    """Yield the ways of exchanging two axes that leave the shape as it is, and could give the reference's values."""
    for first in range(reference.ndim):
        for second in range(first + 1, reference.ndim):
            if reference.shape[first] == reference.shape[second] > 1:
                axes = list(range(reference.ndim))
                axes[first], axes[second] = second, first
                if samples_agree(
                    sampled, sample_values(laid.permute(axes)), coarser_dtype(reference.dtype, laid.dtype)
                ):
                    yield tuple(axes)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
