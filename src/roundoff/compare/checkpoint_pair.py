"""What is the matter with one tensor of a candidate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from roundoff.checkpoints.pairing import Pair
from roundoff.checkpoints.pairing_layers import Axes
from roundoff.compare.checkpoint_tensors import Agreement, agreement, alike, coarser, samples
from roundoff.compare.fresh_values import LEAST_VALUES, constant_value, fresh_start
from roundoff.kernels.differences import Difference, difference
from roundoff.runs import JsonValue


class Kind(StrEnum):
    """What can be the matter with a tensor, the most suspicious first."""

    NOT_LOADED = "not loaded"
    """It looks as a layer starts, and has nothing of the reference."""
    NOT_UPDATED = "not updated"
    """It is the same as before, while most others have moved."""
    TRANSPOSED = "transposed"
    """It is equal with other axes than the layouts ask for."""
    SWAPPED = "swapped"
    """Another tensor of the candidate has these values."""
    DIFFERENT = "different"
    ROUNDED = "rounded"
    """It is equal but for the narrower of the two formats."""
    EQUAL = "equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPair:
    """Two tensors, what is the matter, and how far apart they are."""

    pair: Pair
    kind: Kind
    shape: tuple[int, ...]
    dtypes: tuple[str, str]
    """Of the reference and of the candidate, as torch calls them."""
    note: str = ""
    """A few words more."""
    distance: Difference | None = None
    """None where the two are equal."""
    partner: str | None = None
    """The candidate's tensor that has the values of the reference, where they are swapped."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return it as JSON has it."""
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
class Looked:
    """A pair after the first look, with samples of the two that differ for whoever looks for swaps."""

    compared: ComparedPair
    samples: tuple[Tensor, Tensor] | None = None


def lay(candidate: Tensor, pair: Pair, shape: tuple[int, ...]) -> Tensor:
    """Give a candidate's tensor the axes and the shape of its reference."""
    laid = candidate if pair.axes is None else candidate.permute(pair.axes)
    return laid.reshape(shape).contiguous()


def look(pair: Pair, reference: Tensor, candidate: Tensor) -> Looked:
    """Say what is the matter with `candidate`, which is still in its own layout."""
    laid = lay(candidate, pair, tuple(reference.shape))
    far = difference(reference, laid)
    agreed = agreement(reference, laid, found=far)
    if agreed is not None and not pair.is_asked:
        note = "only the shapes ask for it" if pair.axes else "the layouts ask for other axes"
        return Looked(compared=_compared(pair, reference, laid, Kind.TRANSPOSED, note=note))
    if agreed is not None and agreed[0] is Agreement.EQUAL:
        return Looked(compared=_compared(pair, reference, laid, Kind.EQUAL))
    if agreed is not None:
        note = f"to {_name(agreed[1])}"
        return Looked(compared=_compared(pair, reference, laid, Kind.ROUNDED, note=note, far=far))
    sampled = samples(reference), samples(laid)
    for axes in _other_axes(reference, laid, sampled[0]):
        if agreement(reference, laid.permute(axes)) is not None:
            note = f"equal with its axes as {axes}"
            return Looked(compared=_compared(pair, reference, laid, Kind.TRANSPOSED, note=note))
    if not (reference.is_floating_point() and laid.is_floating_point()):
        note = f"{far.num_different} of {reference.numel()} values"
        return Looked(compared=_compared(pair, reference, laid, Kind.DIFFERENT, note=note))
    kind, note = _why_different(reference, laid, far)
    return Looked(compared=_compared(pair, reference, laid, kind, note=note, far=far), samples=sampled)


def _why_different(reference: Tensor, laid: Tensor, far: Difference) -> tuple[Kind, str]:
    ours, theirs = far.num_nonfinite
    if ours != theirs:
        return Kind.DIFFERENT, f"{theirs} of its values are not finite, {ours} of the reference's"
    constants = constant_value(reference), constant_value(laid)
    if constants[1] is not None and constants[0] is None:
        return Kind.NOT_LOADED, f"every value is {constants[1]:g}"
    is_unrelated = math.isnan(far.cosine) or abs(far.cosine) < 5 / math.sqrt(reference.numel())
    if not is_unrelated or reference.numel() < LEAST_VALUES:
        return Kind.DIFFERENT, ""
    start = fresh_start(laid)
    if start is None:
        return Kind.DIFFERENT, "the two have nothing in common"
    if fresh_start(reference) is not None:
        return Kind.DIFFERENT, "both look like start values, of different seeds"
    return Kind.NOT_LOADED, f"it looks like {start}"


def _other_axes(reference: Tensor, laid: Tensor, sampled: Tensor) -> Iterator[Axes]:
    """Yield the ways of exchanging two axes that leave the shape as it is, and could give the reference's values."""
    for first in range(reference.ndim):
        for second in range(first + 1, reference.ndim):
            if reference.shape[first] == reference.shape[second] > 1:
                axes = list(range(reference.ndim))
                axes[first], axes[second] = second, first
                if alike(sampled, samples(laid.permute(axes)), coarser(reference.dtype, laid.dtype)):
                    yield tuple(axes)


def _compared(
    pair: Pair, reference: Tensor, candidate: Tensor, kind: Kind, *, note: str = "", far: Difference | None = None
) -> ComparedPair:
    return ComparedPair(
        pair=pair,
        kind=kind,
        shape=tuple(reference.shape),
        dtypes=(_name(reference.dtype), _name(candidate.dtype)),
        note=note,
        distance=far,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
