"""Something in a training that cannot be right, noted when it was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from roundoff.runs.plain_json import JsonValue
from roundoff.runs.typed_json import object_from, object_to_text

AnomalyKind = Literal["loss", "gradient", "weight", "buffer", "spike", "exception"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """What the watch saw and when; why it came about is for a diagnosis to say."""

    step: int
    kind: AnomalyKind
    """loss, gradient, weight, buffer: it is not finite. spike: the loss jumped. exception: the step raised."""
    phase: str | None = None
    name: str | None = None
    """The parameter or buffer; the type of the exception."""
    value: float | None = None
    """The loss."""
    detail: Mapping[str, JsonValue] = field(default_factory=dict)

    def to_text(self) -> str:
        """Write the anomaly as one line of JSON."""
        return object_to_text(self)

    @classmethod
    def from_object(cls, value: Mapping[str, JsonValue]) -> Anomaly:
        """Read an anomaly; fields that a newer version added are left out."""
        return object_from(cls, value)
