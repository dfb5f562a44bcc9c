"""The result of a replayed step, besides its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roundoff.runs.files.plain_json import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayInfo:
    """How a step was replayed and whether it came out as it had the first time."""

    step: int
    snapshot_step: int
    """The step before which the state was kept; those in between were run again."""
    is_identical: bool | None
    """Whether loss, weights, buffers, optimizer state and generators came out bit for bit; None if not checked."""
    first_difference: str | None = None
    """What differed first: `loss`, `weight of blocks.0.mlp`, ..."""
    is_eager: bool = False
    """Whether compiled code ran eagerly: then it agrees within its format only, and that is no fault."""
    covers: tuple[str, ...] = ("forward", "backward", "optimizer")
    """The phases that could be replayed."""
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The op of a replayed step that made a bad value from good ones, caught with its real inputs."""

    step: int
    phase: str
    site: str
    op: str
    """With its number: `aten.bmm#0`."""
    overload: str
    """As torch looks it up: `aten::bmm` and its overload, `aten::bmm.default`."""
    microbatch: int = 0
    parameter: str | None = None
    source: str | None = None
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    """By name; a tensor is {"tensor": key in origin-rankR.safetensors}, other values are JSON or {"repr": text}."""
    num_outputs: int = 1
    """Results are `output0`, ... in the same file, those in fp64 `fp64_output0`, ..."""
    is_finite_in_fp64: bool | None = None
    """True: a wider format would have held it. False: it leaves its domain in any. None: it could not be tried."""
    fp64_absmax: float | None = None
    """The largest magnitude among the results in fp64."""
    dtype: str | None = None
    bad_index: tuple[int, ...] | None = None
    """Where in the first bad result the first bad value is."""
