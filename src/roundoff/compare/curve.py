"""A loss curve: one number per step, wherever it was logged."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

_LARGEST_STEP = 2**62
"""A larger number is no step, and no machine's integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Values by step, the steps rising; a value may be NaN or infinite."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.steps) == len(self.values), "a step for every value"

    @classmethod
    def of(cls, steps: Sequence[int | None], values: Sequence[float], *, name: str) -> Curve:
        """Build a curve from what a log says, in its order.

        Where no step is given, or where the steps begin anew (as batches do with every epoch) or stand still, values
        are numbered by their order. Where a log goes back to an earlier step, as a resumed training does, its later
        value counts.

        >>> Curve.of([0, 1, 0, 1], [3.0, 2.0, 1.5, 1.0], name="a").steps
        (0, 1, 2, 3)
        >>> Curve.of([0, 1, 2, 1, 2], [4.0, 3.0, 9.0, 2.5, 2.0], name="a").values
        (4.0, 2.5, 2.0)
        """
        known = [step for step in steps if step is not None and abs(step) < _LARGEST_STEP]
        if len(known) < len(values) or _begin_anew(known) or 2 * len(set(known)) < len(known):
            return cls(name=name, steps=tuple(range(len(values))), values=tuple(values))
        latest = dict(zip(known, values, strict=True))
        return cls(name=name, steps=tuple(sorted(latest)), values=tuple(latest[step] for step in sorted(latest)))


def _begin_anew(steps: Sequence[int]) -> bool:
    return any(later < step and later <= steps[0] for step, later in itertools.pairwise(steps))
