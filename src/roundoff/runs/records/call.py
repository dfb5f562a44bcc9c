"""What the loop did, call by call, and what is known about each kind of call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from roundoff.runs.files.plain_json import JsonValue, object_from, object_from_values, optional_field, with_detail

CallKind: TypeAlias = Literal[
    "forward", "zero_grad", "backward", "unscale", "clip", "step", "scheduler",
    "train", "eval", "load", "read", "save", "epoch", "undone",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDetail:
    """Nothing more is known about the call or anomaly, or a newer version added its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardDetail:
    """A call of a model by the loop."""

    site: str = optional_field("")
    training: bool = False


@dataclass(slots=True, kw_only=True)
class ZeroGradDetail:
    """A call of zero_grad; not frozen, since one is made in every step."""

    of: str | None = optional_field(None)
    """The name of the optimizer, or the class of the module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardDetail:
    """A run of the autograd engine."""

    is_part_of_forward: bool = optional_field(False)
    """Whether its result is differentiated again."""
    is_scaled: bool = optional_field(False)
    """Whether a scaler made the loss it starts from."""
    returns_gradients: bool = optional_field(False)
    """Whether it adds to no gradient (`torch.autograd.grad`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipDetail:
    """A clipping of gradients, by norm or by value."""

    max_norm: float | None = optional_field(None)
    total_norm: float | None = optional_field(None)
    max_value: float | None = optional_field(None)


@dataclass(slots=True, kw_only=True)
class StepDetail:
    """An optimizer's step; not frozen, since one is made in every step."""

    optimizer: str | None = optional_field(None)
    """Its class, and `#2` for a second one of the same."""
    lr: tuple[float, ...] | None = optional_field(None)
    """Of each group; None for a skipped step."""
    skipped: bool = optional_field(False)
    by_scaler: bool = optional_field(False)
    """Whether a scaler called it."""
    num_carried: int = optional_field(0)
    """How many parameters still had the gradient that the step before had used."""
    is_fresh: bool = optional_field(False)
    """Whether the optimizer had no state yet."""
    num_carried_in_closure: int = optional_field(0)
    """How many parameters still had the gradient of one evaluation of the closure when the next one added its own."""
    num_left_over: int = optional_field(0)
    """How many parameters still had the gradient of a loss that another optimizer stepped for, when the next one was
    added."""
    left_by: str | None = optional_field(None)
    """That optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerDetail:
    """A learning-rate scheduler's step."""

    scheduler: str | None = optional_field(None)
    """Its class."""
    initial: bool = False
    """Whether it is the step that the scheduler takes when it is made."""
    lr: tuple[float | None, ...] = ()
    position: int | None = optional_field(None)
    """Its `last_epoch` after the step."""
    length: int | None = optional_field(None)
    """After so many of its steps the rate is meant to have come down for good; said with its first step."""
    peak: int | None = optional_field(None)
    """After so many of its steps the rate is meant to be highest, where it rises at first; said with its first step."""
    metric: float | None = optional_field(None)
    """The number that it was given to decide by."""
    improves: Literal["min", "max"] | None = optional_field(None)
    """In which direction that number gets better, as the scheduler was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeDetail:
    """A call of train() or eval(); or an evaluation by `roundoff train`, with its results."""

    module: str | None = optional_field(None)
    """The class of the module."""
    epoch: int | None = optional_field(None)
    loss: float | None = optional_field(None)
    top1: float | None = optional_field(None)
    top5: float | None = optional_field(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDetail:
    """A load_state_dict into a model or optimizer."""

    into: str | None = optional_field(None)
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
    is_own: bool = False
    """Whether what was loaded are the model's own tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDetail:
    """A torch.load."""

    optimizer_states: tuple[str, ...] = ()
    """The keys under which it found the state of an optimizer."""
    optimizer_rates: tuple[float, ...] = ()
    """The learning rates in those states."""
    schedule_positions: tuple[int, ...] = optional_field(())
    """The `last_epoch` of each learning-rate scheduler whose state it found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDetail:
    """A checkpoint that was written."""

    path: str | None = optional_field(None)


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

    loader: int | None = optional_field(None)
    """Its number, in the order in which loaders were first used."""
    sampler: str | None = optional_field(None)
    """Its class."""
    replacement: bool = False
    num_samples: int | None = None
    num_batches: int | None = None
    batch_size: int | None = None
    set_epoch: int | None = None
    shuffle: bool | None = None
    num_workers: int = optional_field(0)
    has_worker_init: bool = optional_field(False)
    """Whether each worker calls a function of the user's as it begins."""
    generators: tuple[str, ...] = optional_field(())
    """Random generators that reading a sample draws from, and of which each worker gets a copy."""
    content: tuple[ArrayContent, ...] | None = optional_field(None)


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
class Call:
    """Something the loop did: zero_grad, backward, unscale, clip, step, scheduler, train, eval, load, save, ..."""

    step: int
    call: CallKind
    microbatch: int = 0
    seconds: float = 0.0
    """When it happened, in seconds since the run started."""
    detail: CallDetail = field(default_factory=NoDetail)
    """Of the class that `CALL_DETAILS` names for this kind of call, or `NoDetail`."""

    @classmethod
    def from_object(cls, value: Mapping[str, JsonValue]) -> Call | None:
        """Read a call; None of a kind that only a newer version knows. Fields that one added are left out."""
        kind = value.get("call")
        if isinstance(kind, str) and kind not in get_args(CallKind):
            return None
        return object_from(cls, with_detail(value, CALL_DETAILS.get(str(kind), NoDetail)))

    def detail_as(self, kind: type[D]) -> D:
        """Return the detail as one of this kind; all its defaults if the call is of another kind."""
        return self.detail if isinstance(self.detail, kind) else kind()
