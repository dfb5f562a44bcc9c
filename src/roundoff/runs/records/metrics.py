"""What the watch notes while a training runs: the numbers of each step, anomalies, and memory that grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from roundoff.runs.files.plain_json import JsonValue, object_from, object_to_text

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLook:
    """One look at a process whose memory grew steadily: how much, and what there is more of than at the look before."""

    step: int
    rss_bytes: int
    """What the process holds, without the copies of the watch."""
    start_step: int
    """Since when it has been growing."""
    start_bytes: int
    """What it held then."""
    is_last: bool = False
    """Whether the training ended here; nothing was looked for then."""
    keepers: tuple[JsonValue, ...] = ()
    """Variables and containers that grew, the largest first: {"name", "source", "kind", "num", "num_more",
    "bytes_more", "has_graph", "item"}."""
    tensors: tuple[JsonValue, ...] = ()
    """Tensors of which there are more, by dtype and shape: {"item", "num", "num_more", "bytes_more"}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The numbers of one step; None where it was not seen or not measured."""

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
