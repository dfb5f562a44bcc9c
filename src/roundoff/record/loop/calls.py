"""The calls of a loop besides models, backward and optimizer steps: their kinds and details."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, SupportsFloat, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from roundoff.kernels.host_copies import LateNumber
from roundoff.record.loop.schedule_plan import NO_PLAN, plan_of
from roundoff.runs import (
    CallDetail,
    CallKind,
    ClipDetail,
    EpochDetail,
    LoadDetail,
    ModeDetail,
    NoDetail,
    ReadDetail,
    SchedulerDetail,
    ZeroGradDetail,
    call_detail,
)
from roundoff.torch_private import hidden_from_modes, is_initial_step

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
class LossScaling:
    """Of a GradScaler's `scale`, which is not written."""

    outputs: Any
    scaled: Any


_NO_DETAIL = NoDetail()
_D = TypeVar("_D", bound=CallDetail)


@dataclass(slots=True)
class LoopCall:
    """One call that the loop has made; not frozen, since that would make a frequent hook slower."""

    kind: LoopCallKind
    owner: Any
    """Whose method it is, or the first argument of a function."""
    detail: CallDetail | LossScaling = _NO_DETAIL
    """Its tensors are still tensors, and what comes from objects of the script is not checked: see `read_detail`."""
    result: Any = None
    """What a DataLoader gave: the iterator."""

    @property
    def is_written(self) -> bool:
        """Whether it is written to the run; the others only show how losses are scaled and what is compiled."""
        return self.kind not in _NOT_WRITTEN


Describe: TypeAlias = Callable[..., LoopCall]
"""Makes a `LoopCall` of a call's result and arguments."""


def read_detail(kind: CallKind, detail: CallDetail) -> CallDetail:
    """Return the details of a call as they are written: a tensor of one number is that number, a larger one None.

    Reading a number waits for an accelerator; `unread_detail` leaves that for later.

    >>> import torch
    >>> read_detail("clip", ClipDetail(max_norm=1.0, total_norm=torch.tensor(2.5))).total_norm
    2.5
    """
    return call_detail(kind, {field.name: _read(getattr(detail, field.name)) for field in fields(detail)})


def unread_detail(detail: _D) -> _D:
    """Return the details with numbers for tensors in host memory; those of accelerators come without waiting."""
    values: dict[str, Any] = {field.name: getattr(detail, field.name) for field in fields(detail)}
    for name, x in values.items():
        is_late = isinstance(x, Tensor) and not x.is_cpu and x.numel() == 1
        values[name] = LateNumber(x) if is_late else _read(x)
    return replace(detail, **values)


def _read(value: Any) -> Any:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    if isinstance(value, LateNumber):
        return float(value)
    if isinstance(value, (list, tuple)):
        return tuple(_read(item) for item in value)
    return value


def learning_rates(optimizer: Optimizer | None) -> list[float]:
    """Return the learning rate of each group that has one; none without an optimizer."""
    rates: list[float] = []  # not a comprehension, which takes longer: this is called in every step
    for group in optimizer.param_groups if optimizer is not None else ():
        if (rate := group.get("lr")) is not None:
            rates.append(float(rate))
    return rates


# -- the details of each call, from its result and arguments -----------------------------------------------------


def describe_as(kind: LoopCallKind) -> Describe:
    """Return a description for calls of which only the kind matters."""
    return lambda result, owner=None, *_, **__: LoopCall(kind, owner)


def describe_zero_grad(result: Any, owner: Any, *_: Any, **__: Any) -> LoopCall:
    """Describe `zero_grad` of a model or an optimizer."""
    return LoopCall("zero_grad", owner, ZeroGradDetail(of=type(owner).__name__))


def describe_norm_clipping(
    result: Any, parameters: Any, max_norm: Any = None, total_norm: Any = None, *_: Any, **__: Any
) -> LoopCall:
    """Describe clipping by the norm of all gradients."""
    return LoopCall("clip", parameters, ClipDetail(max_norm=float(max_norm), total_norm=total_norm))


def describe_value_clipping(result: Any, parameters: Any, clip_value: Any, *_: Any, **__: Any) -> LoopCall:
    """Describe clipping of each gradient."""
    return LoopCall("clip", parameters, ClipDetail(max_value=float(clip_value)))


def describe_mode(result: Any, module: nn.Module, mode: bool = True) -> LoopCall:
    """Describe `train`, which `eval` calls with False."""
    return LoopCall("train" if mode else "eval", module, ModeDetail(module=type(module).__name__))


def describe_loading(result: Any, owner: Any, state_dict: Any = (), *_: Any, **__: Any) -> LoopCall:
    """Describe `load_state_dict` of a model or an optimizer."""
    missing = list(getattr(result, "missing_keys", None) or ())
    unexpected = list(getattr(result, "unexpected_keys", None) or ())
    detail = LoadDetail(
        into=type(owner).__name__,
        num_missing=len(missing),
        num_unexpected=len(unexpected),
        missing=tuple(missing[:20]),
        unexpected=tuple(unexpected[:20]),
        num_keys=_num_keys(owner),
        num_given=len(state_dict),
        is_own=isinstance(owner, nn.Module) and _holds_own_tensors(owner, state_dict),
    )
    return LoopCall("load", owner, detail)


def _holds_own_tensors(module: nn.Module, state_dict: Any) -> bool:
    """Return whether a state dict holds the module's own parameters, so that loading it changes nothing."""
    with hidden_from_modes():
        for name, parameter in module.named_parameters():
            given: Any = state_dict.get(name) if isinstance(state_dict, Mapping) else None
            if type(given) in (Tensor, nn.Parameter) and given.layout is parameter.layout is torch.strided:
                return bool(given.is_set_to(parameter))
    return False


def _num_keys(owner: Any) -> int:
    """Count the keys of a state dict: parameters and saved buffers of a model, or the state of an optimizer."""
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
    detail = ReadDetail(
        optimizer_states=tuple(found),
        optimizer_rates=tuple(sorted(rate for rate in rates if isinstance(rate, (int, float)))),
        schedule_positions=tuple(_schedule_positions(result, depth=3)),
    )
    return LoopCall("read", file, detail)


def _optimizer_states(value: Any, place: str, *, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the optimizer states in what was read: dicts with parameter groups and state."""
    if type(value) is not dict:
        return
    if "param_groups" in value and value.get("state"):
        yield place, value
    elif depth:
        for key, item in value.items():
            yield from _optimizer_states(item, str(key), depth=depth - 1)


def _schedule_positions(value: Any, *, depth: int) -> Iterator[int]:
    """Yield how far each scheduler was whose state is in what was read."""
    if type(value) is not dict:
        return
    if isinstance(value.get("last_epoch"), int) and "_step_count" in value:
        yield value["last_epoch"]
    elif depth:
        for item in value.values():
            yield from _schedule_positions(item, depth=depth - 1)


def describe_scheduler(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> LoopCall:
    """Describe the step of a learning-rate scheduler."""
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", [])
    position = getattr(scheduler, "last_epoch", None)
    is_initial = is_initial_step(scheduler)
    plan = plan_of(scheduler) if position == 1 and not is_initial else NO_PLAN
    detail = SchedulerDetail(
        scheduler=type(scheduler).__name__,
        initial=is_initial,
        lr=tuple(_detach(group.get("lr")) for group in groups),
        position=position if isinstance(position, int) else None,
        length=plan.length,
        peak=plan.peak,
    )
    if isinstance(scheduler, ReduceLROnPlateau):
        given = args[0] if args else kwargs.get("metrics")
        detail = replace(detail, metric=_number(given), improves="max" if scheduler.mode == "max" else "min")
    return LoopCall("scheduler", scheduler, detail)


def _number(value: Any) -> float | None:
    """Return a finite number; None of anything else, and of what is on an accelerator: reading it would wait."""
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 and value.is_cpu else None
    return float(value) if isinstance(value, SupportsFloat) and math.isfinite(float(value)) else None


def _detach(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def describe_scaling(result: Any, scaler: Any, outputs: Any) -> LoopCall:
    """Describe a GradScaler's `scale`."""
    return LoopCall("scale", scaler, LossScaling(outputs=outputs, scaled=result))


def describe_epoch(result: Any, loader: Any, *_: Any, **__: Any) -> LoopCall:
    """Describe the beginning of an iteration over a DataLoader."""
    owner = loader if loader.batch_sampler is None else loader.batch_sampler
    sampler = getattr(owner, "sampler", None)
    detail = EpochDetail(
        sampler=type(sampler).__name__,
        replacement=bool(getattr(sampler, "replacement", False)),
        num_samples=_length(loader.dataset),
        num_batches=_length(loader),
        batch_size=loader.batch_size,
        set_epoch=getattr(sampler, "epoch", None),
        shuffle=getattr(sampler, "shuffle", None),
        num_workers=getattr(loader, "num_workers", 0),
        has_worker_init=getattr(loader, "worker_init_fn", None) is not None,
    )
    return LoopCall("epoch", loader, detail, result)


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None
