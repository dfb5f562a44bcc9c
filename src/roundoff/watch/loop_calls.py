"""What a loop calls beside models, backward and optimizer steps: taped when it begins, noted when it was made."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from roundoff.record.loop.calls import detail_to_json
from roundoff.record.loop.observer import OPTIMIZERS_OWN
from roundoff.record.torch_private import hidden_from_modes
from roundoff.watch.facts.dataset_content import dataset_content
from roundoff.watch.instruments import Instruments
from roundoff.watch.step_course import StepCourse

_TAPED = {"zero_grad", "clip", "unscale", "update", "scaler_step", "optimizer_unscale", "optimizer_clip"}
_HELD = _TAPED | {"scheduler", "load", "save", "compile"}
_METHODS = {
    "unscale": "unscale_",
    "scaler_step": "step",
    "optimizer_unscale": "unscale_",
    "optimizer_clip": "clip_grad_norm_",
}
"""Calls by other names than those of their methods."""


class LoopCalls:
    """Puts calls of the loop onto the tape, which sees nothing of what they do inside, and into the journal."""

    def __init__(self, on: Instruments, course: StepCourse) -> None:
        self._on = on
        self._course = course
        self._under_way: list[str] = []
        self._loaders: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    @property
    def in_scaler_step(self) -> bool:
        """Whether a scaler is running that steps an optimizer, or skips its step."""
        return "scaler_step" in self._under_way

    def begin(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a call begins; it goes onto the tape if the loop itself has made it."""
        tape = self._on.tape
        is_loops = not self._under_way and (not self._on.clock.in_step or tape.in_closure)
        if call == "optimizer_backward" and hasattr(args[0], "announce"):
            self._on.lookout.loss_scale.see_announced(args, kwargs)
            if is_loops:
                tape.loop_call(args[0].announce, args[1:2], {})
        if call not in _HELD:
            return
        if call in _TAPED and is_loops:
            function = _function_of(call, args, kwargs)
            if function is not None:
                tape.loop_call(function, args if call == "clip" else args[1:], kwargs)
        self._under_way.append(call)
        tape.hold()

    def end(self, call: str) -> None:
        """Look at the loop's own functions again; when a scaler has stepped, the attempt is over."""
        clock = self._on.clock
        if call in _HELD:
            if call in self._under_way:
                self._under_way.remove(call)
            self._on.tape.release()
        if call == "scaler_step" and clock.num_attempts and not clock.skipped:
            self._course.end_attempt()

    def made(self, call: str, owner: Any, detail: dict[str, Any]) -> None:
        """Write down what the loop did, and know what follows from it."""
        on = self._on
        if call in ("compile", "update", *OPTIMIZERS_OWN):
            return
        if call in ("scale", "unscale"):
            on.training.scalers.add(owner)
            on.lookout.loss_scale.see_scaler(owner)
        if call == "scale":
            on.lookout.loss_scale.see_scaled(detail["scaled"], detail["outputs"])
            return
        if call == "zero_grad":
            on.clock.zero_grad()
            on.carried.cleared()
        if call == "epoch":
            number = self._loaders.setdefault(owner, len(self._loaders))
            with hidden_from_modes():
                detail = {"loader": number, **detail, "content": dataset_content(owner.dataset)}
        if call == "load":
            on.sites.refresh()
            on.training.refresh()
            on.snapshots.forget()
        on.journal.call(call, detail_to_json(detail))


def _function_of(call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what to call to make a call of the loop again."""
    if call == "clip":
        has_norm = "total_norm" in kwargs or any(isinstance(arg, Tensor) for arg in args[1:])
        return torch.nn.utils.clip_grad._clip_grads_with_norm_ if has_norm else torch.nn.utils.clip_grad_value_
    method = _METHODS.get(call, call)
    return getattr(args[0], method, None) if args else None
