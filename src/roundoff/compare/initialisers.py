"""Names the initialiser that values look drawn from, by their shape and a few statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

MIN_VALUES = 24
"""Fewer values do not show what they were drawn from."""
_MAX_OF_UNIFORM = 1.9
"""The largest magnitude of uniform values is sqrt(3) times their standard deviation, of normal ones more than twice."""


def is_uniform(*, std: float, absmax: float) -> bool:
    """Say whether values around 0 look uniform rather than normal."""
    return absmax < _MAX_OF_UNIFORM * std


def known_initialiser(
    shape: Sequence[int], *, mean: float, std: float, absmax: float, num_values: int | None = None
) -> str | None:
    """Name the initialiser that the values of a weight look drawn from, as torch calls it; None if it is not known.

    `num_values` is how many values the statistics are of, if not all.

    >>> known_initialiser((64, 16), mean=0.001, std=0.144, absmax=0.2499)
    'kaiming uniform'
    >>> known_initialiser((64, 16), mean=0.0, std=0.0199, absmax=0.07)
    'normal 0.02'
    """
    size = num_values or math.prod(shape)
    if size < MIN_VALUES or not std or abs(mean) > 6 * std / math.sqrt(size):
        return None
    known = _uniform_stds(shape) if is_uniform(std=std, absmax=absmax) else _normal_stds(shape)
    distance, name = min((abs(std / other - 1), name) for name, other in known)
    return name if distance < max(0.01, 3 / math.sqrt(2 * size)) else None


def _uniform_stds(shape: Sequence[int]) -> Iterator[tuple[str, float]]:
    yield "uniform +-0.05", 0.05 / math.sqrt(3)  # as Keras starts embeddings
    if (fans := _fans(shape)) is not None:
        yield "kaiming uniform", 1 / math.sqrt(3 * fans[0])  # what torch's own layers use, with a=sqrt(5)
        yield "kaiming uniform for ReLU", math.sqrt(2 / fans[0])
        yield "xavier uniform", math.sqrt(2 / sum(fans))
        if fans[0] != fans[1]:
            yield "lecun uniform", math.sqrt(1 / fans[0])


def _normal_stds(shape: Sequence[int]) -> Iterator[tuple[str, float]]:
    yield from (("normal 1", 1.0), ("normal 0.02", 0.02), ("normal 0.01", 0.01))
    if (fans := _fans(shape)) is not None:
        yield "kaiming normal", math.sqrt(2 / fans[0])
        yield "xavier normal", math.sqrt(2 / sum(fans))
        if fans[0] != fans[1]:
            yield "kaiming normal by outputs", math.sqrt(2 / fans[1])
            yield "lecun normal", math.sqrt(1 / fans[0])


def _fans(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return fan-in and fan-out of a weight, as torch counts them; None if it has none."""
    if len(shape) < 2 or not math.prod(shape):
        return None
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window
