"""What the loop did, call by call, and what is known about each kind of call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from roundoff.runs.files.plain_json import JsonValue, object_from, object_from_values, omitted

CallKind: TypeAlias = Literal[
    "forward", "zero_grad", "backward", "unscale", "clip", "step", "scheduler",
    "train", "eval", "load", "read", "save", "epoch", "undone",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDetail:
    """Nothing more is known about the call, or it is of a kind that a newer version added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardDetail:
    """A call of a model by the loop."""

    site: str = omitted("")
    training: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroGradDetail:
    """A call of zero_grad."""

    of: str | None = omitted(None)
    """The class of the optimizer or module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardDetail:
    """A run of the autograd engine."""

    is_part_of_forward: bool = omitted(False)
    """Whether its result is differentiated again."""
    is_scaled: bool = omitted(False)
    """Whether a scaler made the loss it starts from."""
    returns_gradients: bool = omitted(False)
    """Whether it adds to no gradient (`torch.autograd.grad`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipDetail:
    """A clipping of gradients, by norm or by value."""

    max_norm: float | None = omitted(None)
    total_norm: float | None = omitted(None)
    max_value: float | None = omitted(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDetail:
    """An optimizer's step."""

    optimizer: str | None = omitted(None)
    """Its class, and `#2` for a second one of the same."""
    lr: tuple[float, ...] | None = omitted(None)
    """Of each group; None for a skipped step."""
    skipped: bool = omitted(False)
    by_scaler: bool = omitted(False)
    """Whether a scaler called it."""
    num_carried: int = omitted(0)
    """How many parameters still had the gradient that the step before had used."""
    is_fresh: bool = omitted(False)
    """Whether the optimizer had no state yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerDetail:
    """A learning-rate scheduler's step."""

    scheduler: str | None = omitted(None)
    """Its class."""
    initial: bool = False
    """Whether it is the step that the scheduler takes when it is made."""
    lr: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeDetail:
    """A call of train() or eval(); or an evaluation by `roundoff train`, with its results."""

    module: str | None = omitted(None)
    """The class of the module."""
    epoch: int | None = omitted(None)
    loss: float | None = omitted(None)
    top1: float | None = omitted(None)
    top5: float | None = omitted(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDetail:
    """A load_state_dict into a model or optimizer."""

    into: str | None = omitted(None)
    """The class."""
    num_missing: int = 0
    num_unexpected: int = 0
    missing: tuple[str, ...] = ()
    """The first of the missing keys."""
    unexpected: tuple[str, ...] = ()
    num_keys: int = 0
    """How many keys the model or optimizer has."""
    num_given: int = 0
    """How many keys the loaded state has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDetail:
    """A torch.load."""

    optimizer_states: tuple[str, ...] = ()
    """The keys under which it found the state of an optimizer."""
    optimizer_rates: tuple[float, ...] = ()
    """The learning rates in those states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDetail:
    """A checkpoint that was written."""

    path: str | None = omitted(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayContent:
    """An array that a data set holds in memory, as an epoch began."""

    hash: str
    mean: float
    std: float
    name: str
    address: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDetail:
    """A pass through a DataLoader."""

    loader: int | None = omitted(None)
    """Its number, in the order in which loaders were first used."""
    sampler: str | None = omitted(None)
    """Its class."""
    replacement: bool = False
    num_samples: int | None = None
    num_batches: int | None = None
    batch_size: int | None = None
    set_epoch: int | None = None
    shuffle: bool | None = None
    content: tuple[ArrayContent, ...] | None = omitted(None)


CallDetail: TypeAlias = (
    NoDetail | ForwardDetail | ZeroGradDetail | BackwardDetail | ClipDetail | StepDetail | SchedulerDetail
    | ModeDetail | LoadDetail | ReadDetail | SaveDetail | EpochDetail
)  # fmt: skip

D = TypeVar("D", bound=CallDetail)

CALL_DETAILS: Mapping[str, type[CallDetail]] = {
    "forward": ForwardDetail,
    "zero_grad": ZeroGradDetail,
    "backward": BackwardDetail,
    "clip": ClipDetail,
    "step": StepDetail,
    "scheduler": SchedulerDetail,
    "train": ModeDetail,
    "eval": ModeDetail,
    "load": LoadDetail,
    "read": ReadDetail,
    "save": SaveDetail,
    "epoch": EpochDetail,
}
"""The detail of each kind of call; kinds that are missing have none."""


def call_detail(kind: CallKind, values: Mapping[str, Any]) -> CallDetail:
    """Return the detail of a call of this kind; a value that it has no field for is a mistake of our own code."""
    return object_from_values(CALL_DETAILS.get(kind, NoDetail), values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallLine:
    step: int
    call: CallKind
    microbatch: int = 0
    seconds: float = 0.0
    """When it happened, in seconds since the run started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(_CallLine):
    """Something the loop did: zero_grad, backward, unscale, clip, step, scheduler, train, eval, load, save, ..."""

    detail: CallDetail = field(default_factory=NoDetail)
    """Of the class that `CALL_DETAILS` names for this kind of call, or `NoDetail`."""

    @classmethod
    def from_object(cls, value: Mapping[str, JsonValue]) -> Call | None:
        """Read a call; None of a kind that only a newer version knows. Fields that one added are left out."""
        if isinstance(value.get("call"), str) and value["call"] not in get_args(CallKind):
            return None
        line, detail = object_from(_CallLine, value), value.get("detail", {})
        if not isinstance(detail, Mapping):
            raise ValueError(f"'detail' holds {detail!r:.80}")
        kind = CALL_DETAILS.get(line.call, NoDetail)
        return cls(
            step=line.step,
            call=line.call,
            microbatch=line.microbatch,
            seconds=line.seconds,
            detail=object_from(kind, detail),
        )

    def detail_as(self, kind: type[D]) -> D:
        """Return the detail as one of this kind; all its defaults if the call is of another kind."""
        return self.detail if isinstance(self.detail, kind) else kind()
