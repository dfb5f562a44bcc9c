"""How the memory of a training process grew, noted where it grew steadily."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roundoff.runs.plain_json import JsonValue
from roundoff.runs.typed_json import object_from, object_to_text


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

    def to_text(self) -> str:
        """Write the look as one line of JSON."""
        return object_to_text(self)

    @classmethod
    def from_object(cls, value: Mapping[str, JsonValue]) -> MemoryLook:
        """Read a look; fields that a newer version added are left out."""
        return object_from(cls, value)
