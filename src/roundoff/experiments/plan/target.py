"""What a plan has to meet: how far the loss may move, or how much memory it may take."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roundoff.errors import PlanError

DEFAULT_LOSS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One of three: the loss within a share of itself, so many bits a number on average, or so many bytes."""

    loss: float | None = None
    """By which share of itself the loss may move in one step."""
    bits: float | None = None
    """Mean bits of the weights and results of the model."""
    memory_bytes: int | None = None
    """Bytes of the weights and results of one step together."""

    def __post_init__(self) -> None:
        given = [name for name in ("loss", "bits", "memory_bytes") if getattr(self, name) is not None]
        if len(given) != 1:
            raise PlanError.explain(
                f"A plan has one target, and this one has {len(given)}.",
                why="the narrowest formats for a loss, and the smallest error for a budget, are different searches.",
                fix="give one of --target loss=0.5%, --bits 18, --memory 40MB.",
            )
        if not getattr(self, given[0]) > 0:
            raise PlanError.explain(
                f"The target {given[0]} = {getattr(self, given[0])} cannot be met.", fix="use more."
            )

    @property
    def is_budget(self) -> bool:
        """Whether room is what is limited, and not the error."""
        return self.loss is None

    def __str__(self) -> str:
        if self.loss is not None:
            return f"the loss within {100 * self.loss:g} % of fp32 in one step"
        if self.bits is not None:
            return f"{self.bits:g} bits a number on average"
        return f"{self.memory_bytes} bytes of weights and results"


def target_of(text: str | None, *, bits: float | None = None, memory_bytes: int | None = None) -> Target:
    """Return the target that options ask for; without any, the loss within 0.5 %.

    >>> target_of("loss=0.5%").loss
    0.005

    Raises:
        PlanError: the text is no target, or there is more than one.
    """
    if text is None and bits is None and memory_bytes is None:
        return Target(loss=DEFAULT_LOSS)
    return Target(loss=None if text is None else _loss(text), bits=bits, memory_bytes=memory_bytes)


def _loss(text: str) -> float:
    match = re.fullmatch(r"loss=(\d*\.?\d+(?:[eE][-+]?\d+)?)(%?)", text.strip())
    if match is None:
        raise PlanError.explain(
            f"'{text}' is no target.", why="a target says how far the loss may move.", fix="write it as loss=0.5%"
        )
    return float(match[1]) / (100 if match[2] else 1)
