"""Plays steps again with one thing changed: what would have kept them good, and does a fix help?

The rate, the norm of the gradients, the format of everything or of one site, the calls of the loop: each is changed
alone, in copies, from a snapshot on. What comes out is written into the run and becomes the proof of a finding.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.record.loop.sites import Sites
from roundoff.record.structure import outermost_optimizers, parameters_of
from roundoff.replay.own_time import own_seconds
from roundoff.replay.player import StepPlayer, all_finite, discarding_output
from roundoff.replay.replayed_step import updates
from roundoff.replay.snapshots import ReplayPath
from roundoff.replay.state import Training
from roundoff.replay.step_tape import (
    BackwardEntry,
    FunctionEntry,
    LoopEntry,
    ModelEntry,
    StepEntry,
    StepTape,
    TapeEntry,
    flatten_entries,
)
from roundoff.runs import WhatIfProbe
from roundoff.switches import switching
from roundoff.switches.widest import NARROW
from roundoff.torch_private import FunctionMode

_RATE_FACTOR = 0.1
_MAX_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing to change in a replay."""

    name: str
    text: str
    """What is changed, after "with": `a tenth of the learning rate`."""
    edit: Callable[[StepTape], StepTape] = lambda tape: tape
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


UNCHANGED = Change(name="nothing", text="nothing changed")


def try_changes(
    training: Training, path: ReplayPath, sites: Sites, *, bad_site: str | None, is_spike: bool, until: float
) -> Iterator[WhatIfProbe]:
    """Play the steps of a path once for each change that makes sense for them, as long as there is time.

    The steps are good if losses and weights stay finite and, of a spike, the last loss stays in the lower half of the
    jump. If they are good unchanged, nothing can be learned from changing them.

    Args:
        training: whose models and optimizers run.
        path: what leads to the bad step, which is its last.
        sites: names of modules.
        bad_site: where the first bad value was computed, if that is known.
        is_spike: the loss of the bad step is finite, and jumped.
        until: when to stop, as `own_seconds` says it: on a busy machine no less is tried.
    """
    losses = [float(tape.losses[-1]) for tape in path[1][-2:] if tape.losses]
    limit = sum(losses) / 2 if is_spike and len(losses) == 2 else None
    changes = _changes_for(training, path[1], sites, bad_site)
    began = own_seconds()
    if not changes or play_changed(training, path, limit=limit)[0]:
        return
    seconds = own_seconds() - began
    for change in changes:
        if own_seconds() + seconds > until:
            return
        with contextlib.suppress(Exception):  # the user's code may not accept what was changed
            is_good, found = play_changed(training, path, change, limit=limit)
            yield WhatIfProbe(
                step=path[1][-1].step,
                first_step=path[1][0].step,
                change=change.name,
                text=change.text,
                is_good=is_good,
                is_spike=limit is not None,
                losses=tuple(found),
            )


def play_changed(
    training: Training, path: ReplayPath, change: Change = UNCHANGED, *, limit: float | None = None
) -> tuple[bool, list[float]]:
    """Play steps with a change, up to the first that is bad; return whether all are good, and their losses."""
    snapshot, tapes = path
    losses: list[float] = []
    playing = StepPlayer(tapes)
    with snapshot.state.swapped_in(training), discarding_output(), change.around():
        for tape in tapes:
            step_losses = playing.play(change.edit(tape))
            losses += [float(loss) for loss in step_losses]
            if not all_finite([*step_losses, *training.tensors()]):
                return False, losses
    return limit is None or all(loss <= limit for loss in losses[-1:]), losses


def play_repeatedly(
    training: Training, path: ReplayPath, change: Change = UNCHANGED, *, num_steps: int, until: float
) -> list[float]:
    """Play the steps of a path again and again with a change; return the loss of the first one each time.

    The list ends with infinity if a loss or a weight does.

    Raises:
        OutOfTime: `time.monotonic` has passed `until`.
    """
    snapshot, tapes = path
    losses: list[float] = []
    with snapshot.state.swapped_in(training), discarding_output(), change.around():
        for _ in range(max(2, 1 + -(-num_steps // len(tapes)))):
            playing = StepPlayer(tapes, until=until)
            for tape in tapes:
                found = playing.play(change.edit(tape))
                if not all_finite([*found, *training.tensors()]):
                    return [*losses, math.inf]
                if tape is tapes[0] and found:
                    losses.append(math.fsum(map(float, found)) / len(found))
    return losses


def _changes_for(training: Training, tapes: Sequence[StepTape], sites: Sites, bad_site: str | None) -> list[Change]:
    entries = [entry for tape in tapes for entry in flatten_entries(tape.entries)]
    used = {id(x) for entry in entries if isinstance(entry, ModelEntry) for x in entry.module.parameters()}
    has_recipe = any(updates(optimizer, used) for optimizer in training.recipes())
    changes: list[Change] = []
    if not has_recipe and is_narrow(entries):
        module = None if bad_site is None else module_at(bad_site, training, sites)
        if module is not None and not _is_root(module, entries):
            changes.append(wide_site(module, str(bad_site)))
        changes.append(EVERYTHING_WIDE)
    if len(tapes) > 1 and any(isinstance(entry, StepEntry) for entry in entries):
        changes.append(rate_times(_RATE_FACTOR))
        if not has_recipe and not any(map(_is_of_scaler, entries)):  # clipping is for gradients that are not scaled
            changes.append(clip_to(_MAX_NORM))
    return changes


EVERYTHING_WIDE = Change(name="wide", text="everything computed in fp32", around=lambda: switching({"widest": "fp32"}))


def wide_site(module: nn.Module, site: str) -> Change:
    """Let one module compute in fp32, from its inputs to its outputs."""
    return Change(name="wide-site", text=f"{site} computed in fp32", around=lambda: _computing_wide(module))


def rate_times(factor: float) -> Change:
    """Multiply every learning rate."""
    text = "a tenth of the learning rate" if factor == _RATE_FACTOR else f"{factor:g} times the learning rate"
    return Change(name="rate", text=text, edit=lambda tape: _with_rate(tape, lambda rate: factor * rate))


def rate_of(value: float) -> Change:
    """Set every learning rate."""
    return Change(
        name="rate", text=f"a learning rate of {value:g}", edit=lambda tape: _with_rate(tape, lambda _: value)
    )


def clip_to(norm: float) -> Change:
    """Clip the gradients before every step of an optimizer."""
    text = f"gradients clipped to a norm of {norm:g}"
    return Change(name="clip", text=text, edit=lambda tape: _with_clipping(tape, norm))


def clear_gradients(training: Training) -> Change:
    """Clear the gradients of all models and optimizers before every step, and at no other time."""
    clear = functools.partial(_set_gradients_to_none, training)

    def edit(tape: StepTape) -> StepTape:
        kept = [entry for entry in tape.entries if not _is_call(entry, "zero_grad")]
        return replace(tape, entries=[_loop_entry(clear), *kept])

    return Change(name="clear", text="gradients cleared before every backward, and only there", edit=edit)


def step_after_backward(training: Training) -> Change:
    """Let every optimizer step at the end of every step, with the gradients of that step."""
    steps = [optimizer.step for optimizer in outermost_optimizers(training.optimizers)]

    def edit(tape: StepTape) -> StepTape:
        cleared = clear_gradients(training).edit(tape)
        return replace(cleared, entries=[*cleared.entries, *(_loop_entry(step) for step in steps)])

    return Change(name="step", text="the optimizer stepping after every backward", edit=edit)


def without_decay() -> Change:
    """Set every weight decay to 0."""
    return Change(name="decay", text="no weight decay", edit=lambda tape: _with_setting(tape, "weight_decay", 0.0))


def scaled_loss(scale: float) -> Change:
    """Scale the loss before every backward, and the gradients back before every step."""

    def edit(tape: StepTape) -> StepTape:
        entries = [
            replace(entry, args=((torch.full_like(entry.loss, scale),), *entry.args[1:]))
            if isinstance(entry, BackwardEntry) and entry.loss is not None
            else entry
            for entry in tape.entries
        ]
        return _before_steps(replace(tape, entries=entries), lambda entry: _multiply_gradients(entry, 1 / scale))

    return Change(name="loss-scale", text=f"the loss scaled by {scale:g}", edit=edit)


def gradients_times(factor: float, *, text: str) -> Change:
    """Multiply the gradients before every step of an optimizer."""
    return Change(
        name="gradients",
        text=text,
        edit=lambda tape: _before_steps(tape, lambda entry: _multiply_gradients(entry, factor)),
    )


def unscale_before_clipping() -> Change:
    """Let the scaler unscale the gradients before they are clipped."""

    def edit(tape: StepTape) -> StepTape:
        scaled = next((entry for entry in tape.entries if _is_of_scaler(entry) and _is_call(entry, "step")), None)
        entries: list[TapeEntry] = []
        for entry in tape.entries:
            if isinstance(scaled, LoopEntry) and isinstance(entry, LoopEntry) and _is_call(entry, "clip_grad"):
                entries.append(_loop_entry(_owner_of(scaled).unscale_, *scaled.args[:1]))
                if "norm" in entry.function.__name__:  # which was measured before the gradients were unscaled
                    entry = replace(entry, called=torch.nn.utils.clip_grad_norm_, args=entry.args[:2], kwargs={})
                scaled = None
            entries.append(entry)
        return replace(tape, entries=entries)

    return Change(name="unscale", text="gradients unscaled before they are clipped", edit=edit)


def update_others(training: Training) -> Change:
    """Update the parameters that no optimizer holds, too, about as those that one holds."""

    def edit(tape: StepTape) -> StepTape:
        return _before_steps(tape, lambda entry: _update_left_out(training, entry))

    return Change(name="update-others", text="the parameters that no optimizer holds updated too", edit=edit)


def logits_to_criterion() -> Change:
    """Hand loss functions that apply a softmax or sigmoid themselves what the model's own one was applied to."""
    text = "what the softmax or sigmoid was applied to passed to the loss function"
    return Change(name="logits", text=text, around=_LogitsToCriterion)


def targets_of_same_shape() -> Change:
    """Give the second argument of an elementwise loss the shape of the first where only the shapes differ."""
    return Change(name="same-shape", text="targets in the shape of the predictions", around=_TargetsOfSameShape)


def drawn_weights(training: Training) -> Change:
    """Draw weights whose rows are all the same at random, before the first of the steps."""

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        torch.manual_seed(0)
        for x in training.tensors():
            if x.requires_grad and x.dim() > 1 and len(x) > 1 and bool((x == x[:1]).all()):
                nn.init.kaiming_uniform_(x.data, a=math.sqrt(5))
        yield

    return Change(name="drawn", text="the weights drawn at random", around=around)


def module_at(site: str, training: Training, sites: Sites) -> nn.Module | None:
    """Return the module with that site, if there is one."""
    return next((m for m in training.modules() if sites.names[sites.of_module(m, 0)] == site), None)


def _is_of_scaler(entry: TapeEntry) -> bool:
    return isinstance(entry, LoopEntry) and isinstance(_owner_of(entry), torch.amp.GradScaler)


def _owner_of(entry: LoopEntry) -> Any:
    return getattr(entry.function, "__self__", None)


def is_narrow(entries: Sequence[Any]) -> bool:
    """Say whether steps with these entries compute in a narrow format."""
    calls = [entry for entry in entries if isinstance(entry, (ModelEntry, FunctionEntry))]
    is_cast = any(enabled and dtype in NARROW for call in calls for _, enabled, dtype in call.ambient.autocast)
    models = [call.module for call in calls if isinstance(call, ModelEntry)]
    return is_cast or any(x.dtype in NARROW for model in models for x in model.parameters())


def _is_root(module: nn.Module, entries: Sequence[Any]) -> bool:
    return any(isinstance(entry, ModelEntry) and entry.module is module for entry in entries)


@contextlib.contextmanager
def _computing_wide(module: nn.Module) -> Iterator[None]:
    """Let one module compute in fp32, from its inputs to its outputs."""
    plain, own = module.forward, module.__dict__.get("forward")

    def forward(*args: Any, **kwargs: Any) -> Any:
        with switching({"widest": "fp32"}):
            return plain(*args, **kwargs)

    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if own is not None:
            module.__dict__["forward"] = own


def _with_rate(tape: StepTape, change: Callable[[Any], Any]) -> StepTape:
    return _with_settings(tape, lambda group: {**group, "lr": change(group["lr"])} if "lr" in group else group)


def _with_setting(tape: StepTape, name: str, value: Any) -> StepTape:
    return _with_settings(tape, lambda group: {**group, name: value} if name in group else group)


def _with_settings(tape: StepTape, change: Callable[[dict[str, Any]], dict[str, Any]]) -> StepTape:
    entries = [
        replace(entry, settings=[change(group) for group in entry.settings]) if isinstance(entry, StepEntry) else entry
        for entry in tape.entries
    ]
    return replace(tape, entries=entries)


def _with_clipping(tape: StepTape, norm: float) -> StepTape:
    return _before_steps(tape, lambda entry: torch.nn.utils.clip_grad_norm_(parameters_of(entry.optimizer), norm))


def _before_steps(tape: StepTape, action: Callable[[StepEntry], Any]) -> StepTape:
    """Add an action before every step of an optimizer; one with a closure computes its gradients inside."""
    entries: list[TapeEntry] = []
    for entry in tape.entries:
        if isinstance(entry, StepEntry) and not entry.closures:
            entries.append(_loop_entry(functools.partial(action, entry)))
        entries.append(entry)
    return replace(tape, entries=entries)


def _loop_entry(function: Callable[..., Any], *args: Any) -> LoopEntry:
    return LoopEntry(called=function, args=args, kwargs={}, line=None)


def _is_call(entry: TapeEntry, name: str) -> bool:
    return isinstance(entry, LoopEntry) and name in getattr(entry.function, "__name__", "")


def _set_gradients_to_none(training: Training) -> None:
    held = (x for optimizer in training.optimizers for x in parameters_of(optimizer))
    for x in (*training.tensors(), *held):
        x.grad = None


def _multiply_gradients(entry: StepEntry, factor: float) -> None:
    for x in parameters_of(entry.optimizer):
        if x.grad is not None:
            x.grad.mul_(factor)


def _update_left_out(training: Training, entry: StepEntry) -> None:
    """Take a plain step with the parameters of the models that no optimizer holds.

    Adaptive optimizers move every number by about the learning rate; so does this then.
    """
    held = {id(x) for optimizer in training.optimizers for x in parameters_of(optimizer)}
    rate, adapts = float(entry.settings[0].get("lr", 0.0)), "betas" in entry.settings[0]
    with torch.no_grad():
        for x in training.tensors():
            if x.grad is not None and id(x) not in held:
                x.add_(x.grad.sign() if adapts else x.grad, alpha=-rate)
                x.grad = None


class _LogitsToCriterion(FunctionMode):
    """Undoes a softmax or sigmoid right before a loss function that has its own."""

    _MAKERS = frozenset({"softmax", "sigmoid", "log_softmax"})
    _CRITERIA = frozenset({"cross_entropy", "binary_cross_entropy_with_logits"})

    def __init__(self) -> None:
        super().__init__()
        self._made_from: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self._CRITERIA and args and id(args[0]) in self._made_from:
            args = (self._made_from[id(args[0])][1], *args[1:])
        result = func(*args, **(kwargs or {}))
        if name in self._MAKERS and args and isinstance(args[0], Tensor) and isinstance(result, Tensor):
            self._made_from[id(result)] = (result, args[0])  # the result is kept, so that its id stays its own
        elif name == "backward":
            self._made_from.clear()
        return result


class _TargetsOfSameShape(FunctionMode):
    """Reshapes the second of two tensors that hold as many numbers, but would be broadcast against each other."""

    _CRITERIA = frozenset({
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss",
        "binary_cross_entropy_with_logits", "sub", "subtract", "__sub__", "__rsub__", "rsub",
    })  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self._CRITERIA and len(args) > 1:
            first, second = args[:2]
            are_tensors = isinstance(first, Tensor) and isinstance(second, Tensor)
            if are_tensors and first.shape != second.shape and first.numel() == second.numel() > 1:
                args = (first, second.reshape(first.shape), *args[2:])
        return func(*args, **(kwargs or {}))
