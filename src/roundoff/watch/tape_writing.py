"""A tape as JSON: what the loop did in a step, for another process to do again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.runs import JsonValue
from roundoff.watch.arguments import Outside, Rebuilt, Result
from roundoff.watch.state_names import StateNames
from roundoff.watch.step_tape import Ambient, Backward, Entry, FunctionCall, LoopCall, ModelCall, StepTape
from roundoff.watch.torch_functions import name_of_function

T = TypeVar("T")

CLIPS: dict[str, Callable[..., Any]] = {
    "clip_grads_with_norm": torch.nn.utils.clip_grad._clip_grads_with_norm_,
    "clip_grad_value": torch.nn.utils.clip_grad_value_,
}
"""How the loop may clip gradients."""
SCALER_METHODS = ("unscale_", "step", "update")
"""What the loop may call of a GradScaler, beside `scale`, which is a product like any other."""


class CannotTell(Exception):
    """Something of a step that has no form in JSON: then the builder of a replay has to bring the loss."""


class TapeWriter:
    """Tells one step as JSON values; tensors are told by number or name and go into files.

    Raises:
        CannotTell: a call holds something that JSON cannot.
    """

    def __init__(self, tape: StepTape, names: StateNames, scalers: Sequence[torch.amp.GradScaler] = ()) -> None:
        self.generators: list[Tensor] = []
        """The states of torch's generator before each call of a model, to be kept in a file."""
        self.in_batch: set[int] = set()
        """The numbers of the tensors from outside that models and functions were given, as a batch is."""
        self._tape = tape
        self._names = names
        self._scalers = {id(scaler): number for number, scaler in enumerate(scalers)}
        self._outside = {id(outside): number for number, outside in enumerate(tape.outside)}
        self._is_computing = False

    def calls(self) -> list[JsonValue]:
        """Tell what the loop did, in order."""
        return self._entries(self._tape.entries)

    def _entries(self, entries: Sequence[Entry]) -> list[JsonValue]:
        return [self._entry(entry) for entry in entries]

    def _entry(self, entry: Entry) -> JsonValue:
        self._is_computing = isinstance(entry, (ModelCall, FunctionCall))
        if isinstance(entry, ModelCall):
            return self._model_call(entry)
        line: JsonValue = list(entry.line) if entry.line is not None else None
        if isinstance(entry, FunctionCall):
            return {
                "call": "function", "name": _name(entry.function), "args": self.value(entry.args),
                "kwargs": self.value(entry.kwargs), "ambient": _ambient(entry.ambient), "line": line,
                "num_results": entry.num_results,
            }  # fmt: skip
        if isinstance(entry, Backward):
            loss: JsonValue = None if entry.loss is None else [_short(entry.loss.dtype), float(entry.loss)]
            return {
                "call": "backward", "roots": self.value(entry.roots), "args": self.value(entry.args), "line": line,
                "loss": loss,
            }  # fmt: skip
        if isinstance(entry, LoopCall):
            return {**self._loop_call(entry), "line": line}
        return {
            "call": "step", "optimizer": self._optimizer(entry.optimizer), "line": line,
            "settings": [self._settings(group) for group in entry.settings],
            "closures": [self._entries(closure) for closure in entry.closures],
        }  # fmt: skip

    def _model_call(self, call: ModelCall) -> JsonValue:
        self.generators.append(call.generators[0])
        return {
            "call": "model", "module": self.value(call.module), "args": self.value(call.args),
            "kwargs": self.value(call.kwargs), "ambient": _ambient(call.ambient), "is_training": call.is_training,
            "num_results": call.num_results,
        }  # fmt: skip

    def _loop_call(self, call: LoopCall) -> dict[str, JsonValue]:
        given: dict[str, JsonValue] = {"args": self.value(call.args), "kwargs": self.value(call.kwargs)}
        for name, function in CLIPS.items():
            if getattr(call.function, "__name__", None) == function.__name__:
                return {"call": name, **given}
        owner = getattr(call.function, "__self__", None)
        method = getattr(call.function, "__name__", "")
        if method == "zero_grad" and isinstance(owner, (nn.Module, Optimizer)):
            return {"call": "zero_grad", "of": self.value(owner), **given}
        if id(owner) in self._scalers and method in SCALER_METHODS:
            return {"call": f"scaler.{method}", "scaler": self._scalers[id(owner)], **given}
        raise CannotTell(f"the step calls {type(owner).__name__}.{method}, whose state is not saved")

    def value(self, value: Any) -> JsonValue:
        """Tell one value; a dict is a list of pairs, and everything that JSON has no word for is a dict of one key."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        kind = type(value)
        if kind is list:
            return [self.value(item) for item in value]
        if kind is tuple:
            return {"tuple": [self.value(item) for item in value]}
        if kind is dict:
            return {"dict": [[self.value(key), self.value(item)] for key, item in value.items()]}
        if kind is Rebuilt:
            parts = value.parts
            return self.value(tuple(parts) if isinstance(parts, list) else parts)
        return self._special(value)

    def _special(self, value: Any) -> JsonValue:
        if isinstance(value, Result):
            return {"result": value.number}
        if isinstance(value, Outside):
            number = self._outside[id(value)]
            if self._is_computing:
                self.in_batch.add(number)
            return {"outside": number}
        if isinstance(value, Tensor):
            return {"state": _known(self._names.key_of(value), f"a {type(value).__name__} of no model")}
        if isinstance(value, nn.Module):
            place = _known(self._names.place_of(value), f"a {type(value).__name__} of no model")
            return {"module": [place.model, place.path]}
        if isinstance(value, Optimizer):
            return {"optimizer": self._optimizer(value)}
        if isinstance(value, (torch.dtype, torch.device, torch.memory_format, torch.layout)):
            return {type(value).__name__: _short(value)}
        if isinstance(value, slice):
            return {"slice": [self.value(part) for part in (value.start, value.stop, value.step)]}
        if value is ...:
            return {"ellipsis": True}
        if isinstance(value, torch.Size):
            return {"tuple": [int(size) for size in value]}
        raise CannotTell(f"a call was given a {type(value).__name__}")

    def _optimizer(self, optimizer: Optimizer) -> int:
        return _known(self._names.number_of(optimizer), f"an optimizer {type(optimizer).__name__} of its own")

    def _settings(self, group: dict[str, Any]) -> JsonValue:
        """Tell learning rates and the like; what has no form in JSON stays as the builder makes it."""
        told: dict[str, JsonValue] = {}
        for key, value in group.items():
            try:
                told[key] = value.tolist() if isinstance(value, Tensor) else self.value(value)
            except CannotTell:
                continue
        return told


def _known(found: T | None, what: str) -> T:
    if found is None:
        raise CannotTell(f"the step uses {what}")
    return found


def _name(function: Any) -> str:
    return _known(name_of_function(function), f"the function {getattr(function, '__name__', function)}")


def _ambient(ambient: Ambient) -> JsonValue:
    casts: list[JsonValue] = [[kind, enabled, _short(dtype)] for kind, enabled, dtype in ambient.autocast]
    return {"gradients": ambient.gradients, "autocast": casts}


def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")
