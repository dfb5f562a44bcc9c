"""Which axes a tensor must change to stand where another one stands."""

from __future__ import annotations

from dataclasses import dataclass

from roundoff.checkpoints.pairing_layers import Axes

UNASKED: dict[int, tuple[Axes, ...]] = {
    2: ((1, 0),),
    3: ((2, 1, 0),),
    4: ((3, 2, 0, 1), (2, 3, 1, 0), (1, 0, 2, 3)),
    5: ((4, 3, 0, 1, 2), (2, 3, 4, 1, 0)),
}
"""What is tried where a shape does not fit as it is, by the number of axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a candidate's tensor is laid over the reference's."""

    axes: Axes | None
    """For `Tensor.permute`; None leaves it as it is."""
    is_asked: bool
    """The layouts of the two formats ask for it; otherwise only the shapes do."""


def fit(
    reference: tuple[int, ...],
    candidate: tuple[int, ...],
    *,
    reference_axes: Axes | None = None,
    candidate_axes: Axes | None = None,
) -> Fit | None:
    """Say how a candidate of one shape fits a reference of another, or None; axes of one count for nothing.

    Args:
        reference: a shape.
        candidate: a shape.
        reference_axes: what gives the reference PyTorch's layout.
        candidate_axes: the same of the candidate.

    >>> fit((10, 5), (5, 10), candidate_axes=(1, 0))
    Fit(axes=(1, 0), is_asked=True)
    >>> fit((10, 5), (5, 10))
    Fit(axes=(1, 0), is_asked=False)
    """
    asked = _composed(candidate_axes, reference_axes)
    if _fits(reference, candidate, asked):
        return Fit(axes=asked, is_asked=True)
    for axes in (None, *UNASKED.get(len(candidate), ())):
        if _fits(reference, candidate, axes):
            return Fit(axes=axes, is_asked=False)
    return None


def _composed(candidate: Axes | None, reference: Axes | None) -> Axes | None:
    """Return the way to PyTorch's layout and from there to the reference's, as one permutation."""
    if reference is None:
        return candidate
    back = tuple(reference.index(axis) for axis in range(len(reference)))
    if candidate is None:
        return back
    if len(candidate) != len(back):
        return candidate
    both = tuple(candidate[axis] for axis in back)
    return None if both == tuple(range(len(both))) else both


def _fits(reference: tuple[int, ...], candidate: tuple[int, ...], axes: Axes | None) -> bool:
    if axes is not None:
        if len(axes) != len(candidate):
            return False
        candidate = tuple(candidate[axis] for axis in axes)
    return reference == candidate or _without_ones(reference) == _without_ones(candidate)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
