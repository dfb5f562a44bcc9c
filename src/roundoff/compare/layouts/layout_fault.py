"""What is wrong with a layout, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from roundoff.runs import JsonValue


class LayoutFaultKind(StrEnum):
    """What can be wrong with a layout."""

    INPUTS = "inputs"
    START_VALUES = "start values"
    DROPOUT = "dropout"
    FORWARD = "forward"
    LOSS = "loss"
    SCALE = "gradient scale"
    REDUCTION = "missing reduction"
    TIED = "tied weights"
    DIFFERENCE = "difference"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFault:
    """One thing that is wrong with the candidate's layout."""

    kind: LayoutFaultKind
    step: int
    phase: str
    title: str
    why: tuple[str, ...] = ()
    fix: str
    site: str | None = None
    parameter: str | None = None
    rank: int | None = None
    confidence: float = 0.95
    numbers: dict[str, JsonValue] = field(default_factory=dict)
    """`factor`, `equals`, `group`, `ranks`, `parameters`, as far as they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedParts:
    """One tensor of the reference, and what the candidate's ranks have of it."""

    step: int
    kind: str
    """`parameter`, `gradient`, `input`, `result`."""
    name: str
    agreement: str
    factor: float
    residual: float
    num_ranks: int
    divided_dims: tuple[int, ...]
    why_not: str = ""
