"""What probes measured: experiments with one step of the training, each with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from roundoff.runs.files.plain_json import JsonValue, object_from, object_from_values, omitted


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomOp:
    """An op that drew random numbers in eval mode."""

    site: str
    op: str
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalModeProbe:
    """The same batch in train mode, and twice in eval mode."""

    step: int
    probe: Literal["eval-mode"] = "eval-mode"
    train_loss: float | None
    eval_loss: float | None
    eval_again: float | None
    random_ops: tuple[RandomOp, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfBatchProbe:
    """In eval mode: the whole batch, and each half of it."""

    step: int
    probe: Literal["half-batch"] = "half-batch"
    loss: float | None
    halves: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverfitProbe:
    """The losses of the step taken again and again with one batch."""

    step: int
    probe: Literal["overfit"] = "overfit"
    losses: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMixingProbe:
    """One sample was changed: which other samples' outputs changed with it, and where that begins."""

    step: int
    probe: Literal["batch-mixing"] = "batch-mixing"
    sample: int
    changed: tuple[int, ...]
    site: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeOfParameter:
    """The slope of the loss along the gradient of one parameter, as a multiple of what the gradient says."""

    site: str
    parameter: str | None
    ratio: float | None
    ratio_further: float | None = omitted(None)
    """The same over a walk three times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionProbe:
    """The slope of the loss along its gradient, in fp64."""

    step: int
    probe: Literal["direction"] = "direction"
    expected: float
    """What the gradient says."""
    measured: float
    """What a walk along it gives."""
    ratio: float
    functions: tuple[str, ...]
    """The user's own autograd functions in the graph."""
    by_site: tuple[SlopeOfParameter, ...] = omitted(())
    """By parameter; only if there are such functions, or the ratio is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCopy:
    """A tensor that looked like a weight and was written to in every step."""

    num_writes: int
    moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragesProbe:
    """How far one weight went in the first steps, and who else holds or copies it."""

    step: int
    probe: Literal["averages"] = "averages"
    parameter: str | None
    moved: float
    copies: tuple[WeightCopy, ...]
    scales: tuple[float, ...]
    """The factors by which something other than the optimizer made it smaller."""
    num_holders: int
    """How many others hold its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroShares:
    """The share of zeros in the gradient of one parameter."""

    name: str
    zero_share: float
    subnormal_share: float
    wide_zero_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WideProbe:
    """A narrow step computed wide."""

    step: int
    probe: Literal["wide"] = "wide"
    loss: float | None
    wide_loss: float | None
    parameters: tuple[ZeroShares, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeProbe:
    """The loss of a step whose loss jumped, with another batch and in an earlier state."""

    step: int
    probe: Literal["spike"] = "spike"
    loss: float | None
    other_batch: float | None
    """With the batch of the step before it."""
    earlier_state: float | None
    """In the state before that step."""
    batch_size: int | None
    worst_sample: int | None
    """The sample of its batch with the largest loss."""
    worst_loss: float | None
    """What that sample costs by itself."""


Probe: TypeAlias = (
    EvalModeProbe | HalfBatchProbe | OverfitProbe | BatchMixingProbe | DirectionProbe | AveragesProbe | WideProbe
    | SpikeProbe
)  # fmt: skip
P = TypeVar("P", bound=Probe)

PROBE_TYPES: Mapping[str, type[Probe]] = {
    "eval-mode": EvalModeProbe,
    "half-batch": HalfBatchProbe,
    "overfit": OverfitProbe,
    "batch-mixing": BatchMixingProbe,
    "direction": DirectionProbe,
    "averages": AveragesProbe,
    "wide": WideProbe,
    "spike": SpikeProbe,
}


def probe_from(value: Mapping[str, JsonValue]) -> Probe | None:
    """Read what a probe measured; None of a probe that only a newer version knows."""
    kind = PROBE_TYPES.get(str(value.get("probe")))
    return None if kind is None else object_from(kind, value)


def probe_of(values: Mapping[str, Any]) -> Probe:
    """Return what a probe measured; a value that its kind has no field for is a mistake of our own code."""
    return object_from_values(PROBE_TYPES[values["probe"]], values)
