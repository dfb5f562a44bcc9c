"""Something the loop did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roundoff.runs.files.plain_json import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Something the loop did: zero_grad, backward, unscale, clip, step, scheduler, train, eval, load, save."""

    step: int
    call: str
    microbatch: int = 0
    seconds: float = 0.0
    """When it happened, in seconds since the run started."""
    detail: Mapping[str, JsonValue] = field(default_factory=dict)
