"""Where a candidate begins to differ, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

Cause: TypeAlias = Literal[
    "data", "start values", "randomness", "forward", "backward", "optimizer", "collective", "eval"
]
"""What differs first: what came in, what training began with, random numbers, or a part of the step."""

Side: TypeAlias = Literal["reference", "candidate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first difference that is not inherited, and that no format explains."""

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
    """What the inputs differ by already, in the same units."""
    channel: int | None = None
    num_channels: int | None = None
    is_only_in: Side | None = None
    """Where the op has no counterpart on the other side: the side that has it."""
    shapes: tuple[str, str] | None = None
    """Where the shapes differ: the reference's and the candidate's."""
    factor: float | None = None
    """By how many times gradients are larger, where that is how ranks put them together."""
    num_later: int = 0
    """How many results that come after it differ, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTensor:
    """One tensor that both runs have, and how far it is from one to the other."""

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
    """NaN where the shapes differ."""
    inherited: float
    """The sum of the relative differences of its inputs."""
    excess: float
    """The difference over the largest one that its inputs and formats explain; above 1 it needs another explanation."""
    reference_absmax: float = math.nan
    """The largest finite magnitude; NaN where there is none."""
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
