"""What explains a difference of two engines: a cause, and the difference before and after it is taken away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from roundoff.runs import JsonValue

MATTERS = 1e-3
"""Smaller differences, in nats, change no training."""
HALF = 0.5
"""What brings a difference down to the noise of the formats must explain at least this part of its square."""
QUARTER = 0.25
"""What leaves more than that noise must leave less than this part."""


class Cause(StrEnum):
    """Why two engines differ."""

    OFF_BY_ONE = "off-by-one"
    TOKENISATION = "tokenisation"
    TEMPERATURE = "temperature"
    TOP_P = "top-p"
    TOP_K = "top-k"
    PENALTY = "penalty"
    HEAD_DTYPE = "head-dtype"
    PADDING = "padding"
    BATCH = "batch"
    ROUTER_FLIPS = "router-flips"
    STALE_WEIGHTS = "stale-weights"
    WRONG_WEIGHTS = "wrong-weights"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseExplanation:
    """A cause with its proof."""

    cause: Cause
    title: str
    proof: tuple[str, ...]
    """Sentences without a full stop."""
    fix: str
    before: float
    """The difference, in nats (root mean square); `after` is what is left of it without the cause."""
    after: float | None
    """None if the tables do not allow to take it away."""
    confidence: float
    numbers: Mapping[str, JsonValue] = field(default_factory=dict)

    def explains(self, *, limit: float) -> bool:
        """Whether it explains most of the difference; `limit` is what formats explain of it."""
        if self.after is None:
            return False
        return self.after**2 <= (HALF if self.after <= limit else QUARTER) * self.before**2


def nats(value: float) -> str:
    """Write a difference.

    >>> nats(0.21049), nats(0.00031), nats(0)
    ('0.21 nats', '0.00031 nats', '0 nats')
    """
    return f"{value:.2g} nats"
