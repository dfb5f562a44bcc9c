"""The calls of a loop besides models, backward and optimizer steps: their kinds, and what is known of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.runs import JsonValue

LoopCallKind: TypeAlias = Literal[
    "zero_grad", "clip", "scheduler", "train", "eval", "load", "save", "read", "epoch", "compile",
    "scale", "unscale", "update", "scaler_step",
    "optimizer_backward", "optimizer_unscale", "optimizer_clip",
]  # fmt: skip
"""What a loop may call; those that begin with `optimizer_` are methods of optimizers with a loss scale of their own."""

_NOT_WRITTEN: frozenset[LoopCallKind] = frozenset(
    {"compile", "scale", "update", "optimizer_backward", "optimizer_unscale", "optimizer_clip"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedGradients:
    """Of `zero_grad`."""

    of: str
    """The class of the model or optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormClipping:
    """Of `clip_grad_norm_`."""

    max_norm: float
    total_norm: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueClipping:
    """Of `clip_grad_value_`."""

    max_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeChange:
    """Of `train` and `eval`."""

    module: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Of `load_state_dict`."""

    into: str
    num_missing: int
    num_unexpected: int
    missing: list[str]
    unexpected: list[str]
    num_keys: int
    """How many keys the model's or optimizer's own state dict has."""
    num_given: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReading:
    """Of `torch.load`: where in the checkpoint optimizer state is, and the learning rates in it."""

    optimizer_states: list[str]
    optimizer_rates: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStep:
    """Of a learning-rate scheduler's `step`."""

    scheduler: str
    initial: bool
    """Whether it is the call that the scheduler's constructor makes."""
    lr: list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaling:
    """Of a GradScaler's `scale`."""

    outputs: Any
    scaled: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStart:
    """Of a DataLoader's `__iter__`."""

    sampler: str
    replacement: bool
    num_samples: int | None
    num_batches: int | None
    batch_size: int | None
    set_epoch: int | None
    shuffle: bool | None


CallDetail: TypeAlias = (
    ClearedGradients
    | NormClipping
    | ValueClipping
    | ModeChange
    | Loading
    | CheckpointReading
    | SchedulerStep
    | LossScaling
    | EpochStart
)


@dataclass(frozen=True, slots=True)
class LoopCall:
    """One call that the loop has made."""

    kind: LoopCallKind
    owner: Any
    """Whose method it is, or the first argument of a function."""
    detail: CallDetail | None = None

    @property
    def is_written(self) -> bool:
        """Whether it goes into the run; the others only tell how losses are scaled, and what is compiled."""
        return self.kind not in _NOT_WRITTEN


Describe: TypeAlias = Callable[..., LoopCall]
"""Makes a `LoopCall` of a call's result and arguments."""


def detail_to_json(detail: CallDetail | None) -> dict[str, JsonValue]:
    """Return the details of a call as JSON values: a tensor of one number is that number, a larger one None.

    >>> import torch
    >>> detail_to_json(NormClipping(max_norm=1.0, total_norm=torch.tensor(2.5)))
    {'max_norm': 1.0, 'total_norm': 2.5}
    """
    if detail is None:
        return {}
    return {field.name: _to_json(getattr(detail, field.name)) for field in fields(detail)}


def _to_json(value: Any) -> JsonValue:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    return value  # type: ignore[no-any-return]


def learning_rates(optimizer: Optimizer | None) -> list[float]:
    """Return the learning rate of each group that has one; none without an optimizer."""
    groups = optimizer.param_groups if optimizer is not None else []
    return [float(group["lr"]) for group in groups if group.get("lr") is not None]


# -- what is known of each call, from its result and its arguments -----------------------------------------------------


def describe_as(kind: LoopCallKind) -> Describe:
    """Return a description of calls of which nothing more than their kind is of interest."""
    return lambda result, owner=None, *_, **__: LoopCall(kind, owner)


def describe_zero_grad(result: Any, owner: Any, *_: Any, **__: Any) -> LoopCall:
    """Describe `zero_grad` of a model or an optimizer."""
    return LoopCall("zero_grad", owner, ClearedGradients(of=type(owner).__name__))


def describe_norm_clipping(
    result: Any, parameters: Any, max_norm: Any = None, total_norm: Any = None, *_: Any, **__: Any
) -> LoopCall:
    """Describe clipping by the norm of all gradients."""
    return LoopCall("clip", parameters, NormClipping(max_norm=float(max_norm), total_norm=total_norm))


def describe_value_clipping(result: Any, parameters: Any, clip_value: Any, *_: Any, **__: Any) -> LoopCall:
    """Describe clipping of each gradient."""
    return LoopCall("clip", parameters, ValueClipping(max_value=float(clip_value)))


def describe_mode(result: Any, module: nn.Module, mode: bool = True) -> LoopCall:
    """Describe `train`, which `eval` calls with False."""
    return LoopCall("train" if mode else "eval", module, ModeChange(module=type(module).__name__))


def describe_loading(result: Any, owner: Any, state_dict: Any = (), *_: Any, **__: Any) -> LoopCall:
    """Describe `load_state_dict` of a model or an optimizer."""
    missing = list(getattr(result, "missing_keys", None) or ())
    unexpected = list(getattr(result, "unexpected_keys", None) or ())
    detail = Loading(
        into=type(owner).__name__,
        num_missing=len(missing),
        num_unexpected=len(unexpected),
        missing=missing[:20],
        unexpected=unexpected[:20],
        num_keys=_num_keys(owner),
        num_given=len(state_dict),
    )
    return LoopCall("load", owner, detail)


def _num_keys(owner: Any) -> int:
    """Count what a state dict of a model has: parameters and the buffers that are saved; of an optimizer, its state."""
    if isinstance(owner, Optimizer):
        return len(owner.state)
    count = 0
    for module in owner.modules():
        count += sum(1 for x in module._parameters.values() if x is not None)
        saved = module._buffers.keys() - module._non_persistent_buffers_set
        count += sum(1 for name in saved if module._buffers[name] is not None)
    return count


def describe_reading(result: Any, file: Any = None, *_: Any, **__: Any) -> LoopCall:
    """Describe `torch.load`."""
    found = dict(_optimizer_states(result, "", depth=3))
    groups = [group for state in found.values() for group in state["param_groups"]]
    rates = {group.get(name) for group in groups for name in ("lr", "initial_lr")}
    detail = CheckpointReading(
        optimizer_states=list(found),
        optimizer_rates=sorted(rate for rate in rates if isinstance(rate, (int, float))),
    )
    return LoopCall("read", file, detail)


def _optimizer_states(value: Any, place: str, *, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Find the optimizer states in what was read: groups of parameters, and something about them."""
    if type(value) is not dict:
        return
    if "param_groups" in value and value.get("state"):
        yield place, value
    elif depth:
        for key, item in value.items():
            yield from _optimizer_states(item, str(key), depth=depth - 1)


def describe_scheduler(result: Any, scheduler: Any, *_: Any, **__: Any) -> LoopCall:
    """Describe the step of a learning-rate scheduler."""
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", [])
    detail = SchedulerStep(
        scheduler=type(scheduler).__name__,
        initial=bool(getattr(scheduler, "_is_initial", False)),
        lr=[_detach(group.get("lr")) for group in groups],
    )
    return LoopCall("scheduler", scheduler, detail)


def _detach(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def describe_scaling(result: Any, scaler: Any, outputs: Any) -> LoopCall:
    """Describe a GradScaler's `scale`."""
    return LoopCall("scale", scaler, LossScaling(outputs=outputs, scaled=result))


def describe_epoch(result: Any, loader: Any, *_: Any, **__: Any) -> LoopCall:
    """Describe the beginning of an iteration over a DataLoader."""
    owner = loader if loader.batch_sampler is None else loader.batch_sampler
    sampler = getattr(owner, "sampler", None)
    detail = EpochStart(
        sampler=type(sampler).__name__,
        replacement=bool(getattr(sampler, "replacement", False)),
        num_samples=_length(loader.dataset),
        num_batches=_length(loader),
        batch_size=loader.batch_size,
        set_epoch=getattr(sampler, "epoch", None),
        shuffle=getattr(sampler, "shuffle", None),
    )
    return LoopCall("epoch", loader, detail)


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None
