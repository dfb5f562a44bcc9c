"""What one step came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roundoff.runs.plain_json import JsonValue
from roundoff.runs.typed_json import object_from, object_to_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What one step came to; None where it was not seen or not measured."""

    step: int
    loss: float | None = None
    eval_loss: float | None = None
    lr: float | None = None
    loss_scale: float | None = None
    skipped: bool = False
    grad_norm: float | None = None
    update_norm: float | None = None
    seconds: float | None = None
    """How long the step took."""
    optimizer: str | None = None
    """Which optimizer closed the step, where there are several."""

    def to_text(self) -> str:
        """Write the metrics as one line of JSON."""
        return object_to_text(self)

    @classmethod
    def from_object(cls, value: Mapping[str, JsonValue]) -> Metrics:
        """Read metrics; fields that a newer version added are left out."""
        return object_from(cls, value)
