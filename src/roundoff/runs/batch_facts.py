"""What came into a step from outside: inputs, labels, masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roundoff.runs.plain_json import JsonValue
from roundoff.runs.typed_json import object_from, object_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """One tensor that came from outside."""

    place: str
    """Where it went: `<model>[0]`, `cross_entropy[1]`, `model:attention_mask`."""
    shape: tuple[int, ...]
    dtype: str
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    num_nonfinite: int = 0
    hash: str = ""
    """Of its bits, in hex."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How often each value occurs, for whole numbers with few different ones."""
    inner_counts: Mapping[str, int] = field(default_factory=dict)
    """The same of rows of whole numbers, without the equal values that a row begins or ends with: no padding."""
    is_target: bool = False
    """Whether the loss was computed from it, not by way of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """Everything that came into one step from outside; the hashes of its samples are in the table of hashes."""

    step: int
    tensors: tuple[TensorFacts, ...] = ()
    targets: tuple[TensorFacts, ...] = ()
    """What the loss functions were given as targets, wherever it came from."""
    criterion: str | None = None
    """The last loss function the step called: `cross_entropy`, `MSELoss`."""
    criterion_settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """`reduction`, `ignore_index`, `weight`, ... as far as they are plain values."""
    rows_sum_to_one: bool | None = None
    """Whether each row of the criterion's first argument adds up to 1; None if it has none."""
    num_classes: int | None = None
    """The size of the criterion's class dimension."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return it as a JSON object."""
        value = object_of(self)
        for name in ("tensors", "targets"):
            value[name] = [object_of(entry) for entry in getattr(self, name)]
        return value

    @classmethod
    def from_object(cls, value: Mapping[str, JsonValue]) -> BatchFacts:
        """Read it; fields that a newer version added are left out."""
        return object_from(cls, value)
