"""Plays steps that led to a bad one again with one thing changed: what would have kept them good?

The rate, the norm of the gradients, the format of everything or of one site: each is changed alone, in copies, from the
snapshot before the bad step on. What comes out is written into the run and becomes the proof of a finding.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from roundoff.record.loop.sites import Sites
from roundoff.record.structure import parameters_of
from roundoff.replay.own_time import own_seconds
from roundoff.replay.player import StepPlayer, all_finite, discarding_output
from roundoff.replay.replayed_step import updates
from roundoff.replay.snapshots import ReplayPath
from roundoff.replay.state import Training
from roundoff.replay.step_tape import (
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


def module_at(site: str, training: Training, sites: Sites) -> nn.Module | None:
    """Return the module with that site, if there is one."""
    return next((m for m in training.modules() if sites.names[sites.of_module(m, 0)] == site), None)


def _is_of_scaler(entry: TapeEntry) -> bool:
    return isinstance(entry, LoopEntry) and isinstance(getattr(entry.function, "__self__", None), torch.amp.GradScaler)


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
    def edit(entry: TapeEntry) -> TapeEntry:
        if not isinstance(entry, StepEntry):
            return entry
        settings = [{**group, "lr": change(group["lr"])} if "lr" in group else group for group in entry.settings]
        return replace(entry, settings=settings)

    return replace(tape, entries=[edit(entry) for entry in tape.entries])


def _with_clipping(tape: StepTape, norm: float) -> StepTape:
    entries: list[TapeEntry] = []
    for entry in tape.entries:
        if isinstance(entry, StepEntry) and not entry.closures:
            entries.append(LoopEntry(called=functools.partial(_clip, entry, norm), args=(), kwargs={}, line=None))
        entries.append(entry)
    return replace(tape, entries=entries)


def _clip(entry: StepEntry, norm: float) -> None:
    torch.nn.utils.clip_grad_norm_(parameters_of(entry.optimizer), norm)
