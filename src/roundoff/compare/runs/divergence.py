"""Where a candidate starts to differ, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

Cause: TypeAlias = Literal[
    "data", "start values", "randomness", "forward", "backward", "optimizer", "collective", "eval"
]
"""What differs first: the inputs, the start values, random numbers, or a part of the step."""

Side: TypeAlias = Literal["reference", "candidate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first difference that is not inherited and that no format explains."""

    cause: Cause
    step: int
    rank: int
    phase: str
    site: str
    op: str
    """With its number: `aten.bmm#0`; `input`, `parameter` for tensors that no op made."""
    parameter: str | None
    source: str | None
    output: str
    """Which tensor of the op, `output0`."""
    format: str
    """The coarser of the two formats."""
    relative: float
    """The norm of the difference over that of the tensor."""
    introduced_ulps: float
    """The same in units of the format's eps, without what was inherited."""
    inherited_ulps: float
    """What the inputs already differ by, in the same units."""
    knows_inputs: bool = True
    """Whether the op's inputs were recorded, so that introduced and inherited error can be separated."""
    channel: int | None = None
    num_channels: int | None = None
    is_only_in: Side | None = None
    """The side that has the op, if it has no counterpart on the other side."""
    shapes: tuple[str, str] | None = None
    """The reference's and the candidate's shape, if they differ."""
    factor: float | None = None
    """How many times larger gradients are, if ranks combine them differently."""
    num_later: int = 0
    """How many later results differ, too."""
    num_different_before: int = 0
    """How many results before it differ, as far as inputs and formats explain it."""
    num_unjudged_before: int = 0
    """How many results before it have no counterpart, or differ and have no bound: nothing is known about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTensor:
    """One tensor that both runs have, and how far apart the two are."""

    step: int
    rank: int
    phase: str
    site: str
    op: str
    output: str
    parameter: str | None
    source: str | None
    reference_dtype: str
    candidate_dtype: str
    shape: str
    is_equal: bool
    relative: float
    """NaN if the shapes differ."""
    inherited: float
    """The sum of the relative differences of its inputs."""
    excess: float
    """The difference over the largest one that its inputs and formats explain; above 1 it is unexplained."""
    is_judged: bool = True
    """Whether it is known that the difference is explained or not: the shapes agree, and there is a bound."""
    reference_absmax: float = math.nan
    """The largest finite magnitude; NaN if there is none."""
    candidate_absmax: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpairedOp:
    """An op that only one of the runs has."""

    side: Side
    step: int
    phase: str
    site: str
    op: str
    source: str | None
