"""Which calls of the loop go onto the tape, and when: models, backward, optimizers and the rest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.loop.calls import LoopCallKind
from roundoff.record.loop.follower import BackwardCall
from roundoff.record.loop.loss_scale import as_scaled
from roundoff.record.loop.step_clock import StepClock
from roundoff.replay.snapshots import Snapshots, free_bytes
from roundoff.replay.state import Training
from roundoff.replay.step_tape import BackwardEntry, ModelEntry, StepEntry
from roundoff.replay.tape_recorder import TapeRecorder
from roundoff.torch_private import clip_function, hidden_from_modes
from roundoff.words import plural

_TAPES_OF_FREE_MEMORY = 8
"""Tapes may take this part of the memory that an accelerator has left when training begins."""
_NOT_TAPED = "it was not taped, in order to stay within the budget"

_TAPED: frozenset[LoopCallKind] = frozenset(
    {"zero_grad", "clip", "unscale", "update", "scaler_step", "optimizer_unscale", "optimizer_clip"}
)
"""Calls that a replay makes again."""
_OPAQUE: frozenset[LoopCallKind] = _TAPED | {"scheduler", "load", "save", "compile"}
"""Calls inside of which the tape sees nothing."""
_METHODS: dict[LoopCallKind, str] = {
    "unscale": "unscale_",
    "scaler_step": "step",
    "optimizer_unscale": "unscale_",
    "optimizer_clip": "clip_grad_norm_",
}
"""Calls whose kind is not the name of their method."""

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class LoopTaping:
    """Puts the calls of the loop onto a tape; a step with a call that cannot be taped cannot be replayed."""

    def __init__(self, tape: TapeRecorder, snapshots: Snapshots, clock: StepClock) -> None:
        self.opaque_calls: list[LoopCallKind] = []
        """Calls of the loop that are running, inside of which the tape sees nothing."""
        self.backward_is_taped = False
        """Whether the running backward is on the tape."""
        self._tape = tape
        self._snapshots = snapshots
        self._clock = clock
        self._model: ModelEntry | None = None
        self._step: StepEntry | None = None
        self._error_before: BaseException | None = None
        """The exception that was being handled when the running model or backward began."""
        self._why_not_replayable: str | None = None
        self._num_not_replayable = 0

    def limit_memory(self, training: Training) -> None:
        """Leave most of an accelerator's memory to the training: tapes keep batches where they are."""
        devices = {x.device for x in training.tensors() if not x.is_cpu}
        for free in filter(None, map(free_bytes, devices)):
            self._snapshots.max_tape_bytes = min(self._snapshots.max_tape_bytes, free // _TAPES_OF_FREE_MEMORY)
            self._tape.max_bytes = min(self._tape.max_bytes, free // _TAPES_OF_FREE_MEMORY)

    def keep_gradients(self, *, were_cleared: bool) -> None:
        """Keep the gradients that this step adds to, unless they were cleared since it began."""
        latest = self._snapshots.latest
        if latest is not None and latest.step == self._clock.step and not self._clock.microbatch and not were_cleared:
            latest.state.take_gradients()

    def pause(self) -> None:
        """Tape nothing from this step on; the last step that can be replayed is kept."""
        self._snapshots.set_aside()
        self._tape.hears_forward = not self._clock.sees_modules
        self._tape.pause(_NOT_TAPED)

    def step_closed(self, step: int) -> None:
        """Keep the tape of a step, and count the steps that cannot be replayed."""
        tape = self._tape.new_step(step + 1)
        self._snapshots.add(tape)
        if tape.why_not_replayable not in (None, _NOT_TAPED):
            self._why_not_replayable = self._why_not_replayable or tape.why_not_replayable
            self._num_not_replayable += 1

    @property
    def complaint(self) -> str | None:
        """How many steps cannot be replayed, and why the first of them cannot; None if all can."""
        if self._why_not_replayable is None:
            return None
        return f"{plural(self._num_not_replayable, 'step')} cannot be replayed: {self._why_not_replayable}."

    def _try(self, work: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs) -> _Result | None:
        """Put something onto the tape; if that fails, the step cannot be replayed."""
        if not self._tape.takes_notes:
            return None
        try:
            with hidden_from_modes():
                return work(*args, **kwargs)
        except Exception as error:
            self._tape.failed(error)
            return None

    # -- models and backward -------------------------------------------------------------------------------------------

    def model_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModelEntry | None:
        """Tape a call of a model by the loop."""
        self._model = self._try(self._tape.model_enter, module, args, kwargs)
        self._error_before = sys.exc_info()[1]
        return self._model

    def model_ends(self, output: Any) -> None:
        """Tape what the model returned, or that it raised."""
        entry, self._model = self._model, None
        if entry is not None:
            self._try(self._tape.model_leave, entry, output)
            entry.raised = output is None and _has_raised_since(self._error_before)
        self._error_before = None

    def drop_model(self) -> None:
        """Leave a model that an exception ended."""
        self._model = None

    def backward_begins(self, backward: BackwardCall, loss: Tensor | None) -> bool:
        """Tape the start of the autograd engine, unless a replay starts it by itself; return whether it was taped."""
        is_own = not backward.is_part_of_forward and backward.accumulates
        self.backward_is_taped = is_own and not self._tape.is_paused
        self._error_before = sys.exc_info()[1]
        if self.backward_is_taped:
            self._try(self._tape.backward, backward.roots, *backward.arguments, loss=loss)
        return self.backward_is_taped

    def backward_ends(self) -> None:
        """Tape whether the backward raised, when the outermost one has ended."""
        if self._clock.in_backward:
            return
        if self.backward_is_taped and _has_raised_since(self._error_before):
            self._tape.note_raised(BackwardEntry)
        self._error_before = None

    # -- optimizers and other calls ------------------------------------------------------------------------------------

    @property
    def in_scaler_step(self) -> bool:
        """Whether a GradScaler is running that steps an optimizer, or skips its step."""
        return "scaler_step" in self.opaque_calls

    def step_begins(self, optimizer: Optimizer) -> None:
        """Tape an optimizer's step, unless the scaler or the hook that makes it is taped."""
        if not self.in_scaler_step and not self._tape.is_paused and not self._clock.in_backward:
            self._step = self._try(self._tape.step_enter, optimizer)

    def closure_begins(self) -> None:
        """Tape what the closure does as a part of the step."""
        if self._step is not None:
            self._tape.closure_enter(self._step)
            self._tape.release()

    def closure_ends(self) -> None:
        """Go back to the optimizer, whose own functions are not taped."""
        if self._step is not None:
            self._tape.hold()
            self._tape.closure_leave()

    def step_ends(self) -> bool:
        """Return whether the step was taped and called no closure: it used the gradients that it found."""
        entry, self._step = self._step, None
        return entry is not None and not entry.closures

    def call_begins(self, kind: LoopCallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tape another call if the loop itself has made it, and a replay has to make it again."""
        tape, clock = self._tape, self._clock
        is_by_loop = not self.opaque_calls and (not clock.in_step or tape.in_closure) and not tape.is_paused
        is_by_loop = is_by_loop and not clock.in_backward  # a replay of the backward calls the hook that made it
        if kind == "optimizer_backward" and is_by_loop and (optimizer := as_scaled(args[0])) is not None:
            self._try(tape.loop_call, optimizer.announce, args[1:2], {})
        if kind not in _OPAQUE:
            return
        if kind in _TAPED and is_by_loop:
            function = _function_of(kind, args, kwargs)
            if function is not None:
                self._try(tape.loop_call, function, args if kind == "clip" else args[1:], kwargs)
        self.opaque_calls.append(kind)
        tape.hold()

    def call_ends(self, kind: LoopCallKind) -> None:
        """Look at the loop's own functions again."""
        if kind in _OPAQUE:
            if kind in self.opaque_calls:
                self.opaque_calls.remove(kind)
            self._tape.release()


def why_not_replayable(module: nn.Module) -> str | None:
    """Return why a step that calls a model now cannot be replayed; None if it can."""
    parameters = list(module.parameters())
    if any(map(nn.parameter.is_lazy, parameters)):
        return "modules make their weights in it"
    return "its weights are on the meta device, without values" if any(p.is_meta for p in parameters) else None


def _has_raised_since(before: BaseException | None) -> bool:
    """Return whether a call that ends now ends with an exception: one that is not `before`, handled when it began."""
    error = sys.exc_info()[1]
    return error is not None and error is not before


def _function_of(kind: LoopCallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the function that makes a call of the loop again."""
    if kind == "clip":
        has_norm = "total_norm" in kwargs or any(isinstance(arg, Tensor) for arg in args[1:])
        return clip_function() if has_norm else torch.nn.utils.clip_grad_value_
    method = _METHODS.get(kind, kind)
    return getattr(args[0], method, None) if args else None
