"""Which initialiser a parameter's start values look like, from their mean, spread and range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

_ENOUGH = 24
"""Fewer values do not tell how they were drawn."""
_FLATTEST = 1.9
"""The largest magnitude of uniform numbers is the root of 3 times their spread, of normal ones more than twice."""


def initialiser_of(shape: Sequence[int], *, mean: float | None, std: float | None, absmax: float | None) -> str:
    """Name the initialiser that start values look like.

    >>> initialiser_of((64, 16), mean=0.001, std=0.144, absmax=0.2499)
    'kaiming uniform'
    >>> initialiser_of((64, 16), mean=0.0, std=0.0199, absmax=0.07)
    'normal 0.02'
    >>> initialiser_of((64,), mean=1.0, std=0.0, absmax=1.0)
    'ones'
    """
    if mean is None or std is None or absmax is None:
        return "unknown"
    if std <= 1e-7 * max(absmax, 1e-30):
        return {0.0: "zeros", 1.0: "ones"}.get(mean, f"constant {mean:.3g}")
    size = math.prod(shape)
    if size < _ENOUGH:
        return f"mean {mean:.2g}, spread {std:.2g}"
    if abs(mean) > 6 * std / math.sqrt(size):
        return f"numbers around {mean:.2g} with spread {std:.2g}"
    if absmax / std < _FLATTEST:
        bound = _nearest(absmax, _bounds(shape), size=size)
        return bound or f"uniform +-{_rounded(math.sqrt(3) * std)}"
    return _nearest(std, _spreads(shape), size=size) or f"normal {_rounded(std)}"


def spreads_agree(size: int, ours: float, theirs: float) -> bool:
    """Say whether two spreads of so many numbers can be the same, but for chance."""
    allowed = 6 / math.sqrt(2 * max(size, 1))
    return ours == theirs or abs(ours - theirs) <= allowed * max(ours, theirs)


def _fans(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return how many numbers go into and come out of one of the weights, as torch counts them."""
    if len(shape) < 2:
        return None
    inner = math.prod(shape[2:])
    return shape[1] * inner, shape[0] * inner


def _bounds(shape: Sequence[int]) -> Iterator[tuple[str, float]]:
    fans = _fans(shape)
    if fans is not None and min(fans) > 0:
        yield "kaiming uniform", 1 / math.sqrt(fans[0])  # as torch's own layers call it, with the root of 5
        yield "xavier uniform", math.sqrt(6 / sum(fans))
        yield "kaiming uniform for ReLU", math.sqrt(6 / fans[0])


def _spreads(shape: Sequence[int]) -> Iterator[tuple[str, float]]:
    yield "normal 0.02", 0.02
    yield "normal 1", 1.0
    fans = _fans(shape)
    if fans is not None and min(fans) > 0:
        yield "kaiming normal", math.sqrt(2 / fans[0])
        yield "xavier normal", math.sqrt(2 / sum(fans))


def _nearest(value: float, known: Iterator[tuple[str, float]], *, size: int) -> str | None:
    allowed = max(0.01, 3 / math.sqrt(size))
    near = [(abs(value / other - 1), name) for name, other in known]
    return min((pair for pair in near if pair[0] < allowed), default=(0.0, None))[1]


def _rounded(value: float) -> str:
    return f"{value:.1g}" if math.isclose(value, float(f"{value:.1g}"), rel_tol=0.05) else f"{value:.2g}"
