"""What a loop calls beside models, backward and optimizer steps: taped when it begins, running until it ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from roundoff.watch.tape import Tape

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
    """Puts calls of the loop onto the tape, which sees nothing of what they do inside."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._under_way: list[str] = []

    @property
    def in_any(self) -> bool:
        """Whether one of them is running."""
        return bool(self._under_way)

    @property
    def in_scaler_step(self) -> bool:
        """Whether a scaler is running that steps an optimizer, or skips its step."""
        return "scaler_step" in self._under_way

    def begin(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_loops: bool) -> None:
        """Note that a call begins; it goes onto the tape if the loop itself has made it."""
        if call not in _HELD:
            return
        if call in _TAPED and is_loops:
            function = _function_of(call, args, kwargs)
            if function is not None:
                self._tape.loop_call(function, args if call == "clip" else args[1:], kwargs)
        self._under_way.append(call)
        self._tape.hold()

    def end(self, call: str) -> None:
        """Look at the loop's own functions again."""
        if call not in _HELD:
            return
        if call in self._under_way:
            self._under_way.remove(call)
        self._tape.release()


def _function_of(call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what to call to make a call of the loop again."""
    if call == "clip":
        has_norm = "total_norm" in kwargs or any(isinstance(arg, Tensor) for arg in args[1:])
        return torch.nn.utils.clip_grad._clip_grads_with_norm_ if has_norm else torch.nn.utils.clip_grad_value_
    method = _METHODS.get(call, call)
    return getattr(args[0], method, None) if args else None
