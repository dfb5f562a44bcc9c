"""What the watch notes while a training runs: the numbers of each step, anomalies, and memory that grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

from roundoff.runs.files.plain_json import JsonValue, object_from, object_to_text, optional_field, with_detail
from roundoff.runs.records.call import NoDetail

AnomalyKind = Literal["loss", "gradient", "weight", "buffer", "spike", "exception"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeDetail:
    """What the losses before a jump were like."""

    median: float = 0.0
    limit: float = 0.0
    """A loss above this is a jump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionDetail:
    """What is kept of an exception."""

    message: str = ""
    traceback: tuple[str, ...] = ()
    """A line for each frame, the innermost first."""
    causes: tuple[str, ...] = ()
    """The exceptions that led to it, the nearest first."""
    site: str | None = None
    """The innermost module whose code it came through."""
    when: Literal["before", "in", "after"] = optional_field("in")
    """Whether the script was in the step, or before the first one, or after this one, the last that it made."""


AnomalyDetail: TypeAlias = NoDetail | SpikeDetail | ExceptionDetail
A = TypeVar("A", bound=AnomalyDetail)

ANOMALY_DETAILS: Mapping[str, type[AnomalyDetail]] = {"spike": SpikeDetail, "exception": ExceptionDetail}
"""The detail of each kind of anomaly; kinds that are missing have none."""


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
    detail: AnomalyDetail = field(default_factory=NoDetail)
    """Of the class that `ANOMALY_DETAILS` names for this kind of anomaly, or `NoDetail`."""

    @classmethod
    def from_object(cls, value: Mapping[str, JsonValue]) -> Anomaly:
        """Read an anomaly; fields that a newer version added are left out."""
        return object_from(cls, with_detail(value, ANOMALY_DETAILS.get(str(value.get("kind")), NoDetail)))

    def detail_as(self, kind: type[A]) -> A:
        """Return the detail as one of this kind; all its defaults if the anomaly is of another kind."""
        return self.detail if isinstance(self.detail, kind) else kind()


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownObject:
    """A variable or container of the script that grew between two looks."""

    name: str
    source: str | None
    """The line that makes it grow."""
    kind: str
    """`variable`, whose graph grows, or the type of the container."""
    num: int
    """How many entries it has, or nodes its graph."""
    num_more: int
    """How many more than at the look before."""
    has_graph: bool
    bytes_more: int = optional_field(0)
    item: str = optional_field("")
    """What an entry is: `float32 64x10 tensor`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownTensors:
    """Tensors of one dtype and shape, of which there are more than at the look before."""

    item: str
    num: int
    num_more: int
    bytes_more: int


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
    goes_on: bool = True
    """Whether what is in use was still growing when the training ended; otherwise it had levelled off, or was free."""
    keepers: tuple[GrownObject, ...] = ()
    """Those with graphs first, then the largest."""
    tensors: tuple[GrownTensors, ...] = ()
    """The largest first."""


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
