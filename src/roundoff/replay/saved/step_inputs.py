"""What a replayed step started from, written so that another process can run the step again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.loop.sites import Sites, named_places
from roundoff.record.tensor_bytes import bytes_of, file_dtype
from roundoff.replay.arguments import Container, ExternalTensor, Result
from roundoff.replay.generators import Generators
from roundoff.replay.saved.state_names import StateNames, optimizer_prefix
from roundoff.replay.saved.torch_functions import name_of_function
from roundoff.replay.state import Training, parameters_of
from roundoff.replay.step_tape import (
    Ambient,
    BackwardEntry,
    FunctionEntry,
    LoopEntry,
    ModelEntry,
    StepTape,
    TapeEntry,
)
from roundoff.runs import JsonValue, RunWriter, TensorWriter

# == A tape as JSON: what the loop did in a step, for another process to do again.

T = TypeVar("T")

CLIPS: dict[str, Callable[..., Any]] = {
    "clip_grads_with_norm": torch.nn.utils.clip_grad._clip_grads_with_norm_,
    "clip_grad_value": torch.nn.utils.clip_grad_value_,
}
"""How the loop may clip gradients."""
SCALER_METHODS = ("unscale_", "step", "update")
"""What the loop may call of a GradScaler, beside `scale`, which is a product like any other."""


class NotSerializable(Exception):
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
        self._external = {id(external): number for number, external in enumerate(tape.external)}
        self._is_computing = False

    def calls(self) -> list[JsonValue]:
        """Tell what the loop did, in order."""
        return self._entries(self._tape.entries)

    def _entries(self, entries: Sequence[TapeEntry]) -> list[JsonValue]:
        return [self._entry(entry) for entry in entries]

    def _entry(self, entry: TapeEntry) -> JsonValue:
        self._is_computing = isinstance(entry, (ModelEntry, FunctionEntry))
        if isinstance(entry, ModelEntry):
            return self._model_call(entry)
        line: JsonValue = list(entry.line) if entry.line is not None else None
        if isinstance(entry, FunctionEntry):
            return {
                "call": "function", "name": _name(entry.function), "args": self.value(entry.args),
                "kwargs": self.value(entry.kwargs), "ambient": _ambient(entry.ambient), "line": line,
                "num_results": entry.num_results,
            }  # fmt: skip
        if isinstance(entry, BackwardEntry):
            loss: JsonValue = None if entry.loss is None else [_short(entry.loss.dtype), float(entry.loss)]
            return {
                "call": "backward", "roots": self.value(entry.roots), "args": self.value(entry.args), "line": line,
                "loss": loss,
            }  # fmt: skip
        if isinstance(entry, LoopEntry):
            return {**self._loop_call(entry), "line": line}
        return {
            "call": "step", "optimizer": self._optimizer(entry.optimizer), "line": line,
            "settings": [self._settings(group) for group in entry.settings],
            "closures": [self._entries(closure) for closure in entry.closures],
        }  # fmt: skip

    def _model_call(self, call: ModelEntry) -> JsonValue:
        self.generators.append(call.generators[0])
        return {
            "call": "model", "module": self.value(call.module), "args": self.value(call.args),
            "kwargs": self.value(call.kwargs), "ambient": _ambient(call.ambient), "is_training": call.is_training,
            "num_results": call.num_results,
        }  # fmt: skip

    def _loop_call(self, call: LoopEntry) -> dict[str, JsonValue]:
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
        raise NotSerializable(f"the step calls {type(owner).__name__}.{method}, whose state is not saved")

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
        if kind is Container:
            parts = value.parts
            return self.value(tuple(parts) if isinstance(parts, list) else parts)
        return self._special(value)

    def _special(self, value: Any) -> JsonValue:
        if isinstance(value, Result):
            return {"result": value.number}
        if isinstance(value, ExternalTensor):
            number = self._external[id(value)]
            if self._is_computing:
                self.in_batch.add(number)
            return {"outside": number}
        if isinstance(value, Tensor):
            return {"state": _require(self._names.key_of(value), f"a {type(value).__name__} of no model")}
        if isinstance(value, nn.Module):
            place = _require(self._names.place_of(value), f"a {type(value).__name__} of no model")
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
        raise NotSerializable(f"a call was given a {type(value).__name__}")

    def _optimizer(self, optimizer: Optimizer) -> int:
        return _require(self._names.number_of(optimizer), f"an optimizer {type(optimizer).__name__} of its own")

    def _settings(self, group: dict[str, Any]) -> JsonValue:
        """Tell learning rates and the like; what has no form in JSON stays as the builder makes it."""
        told: dict[str, JsonValue] = {}
        for key, value in group.items():
            try:
                told[key] = value.tolist() if isinstance(value, Tensor) else self.value(value)
            except NotSerializable:
                continue
        return told


def _require(found: T | None, what: str) -> T:
    if found is None:
        raise NotSerializable(f"the step uses {what}")
    return found


def _name(function: Any) -> str:
    return _require(name_of_function(function), f"the function {getattr(function, '__name__', function)}")


def _ambient(ambient: Ambient) -> JsonValue:
    casts: list[JsonValue] = [[kind, enabled, _short(dtype)] for kind, enabled, dtype in ambient.autocast]
    return {"gradients": ambient.gradients, "autocast": casts}


def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")


class StepInputsWriter:
    """Writes the state before a step, the tensors that came from outside, and what the loop did."""

    def __init__(self, writer: RunWriter, training: Training, sites: Sites) -> None:
        self._writer = writer
        self._training = training
        self._sites = sites
        self._facts: dict[str, JsonValue] = {}
        self._scalers = [helper for helper in training.scalers if type(helper) is torch.amp.GradScaler]

    def write_state(self) -> None:
        """Write parameters, buffers, gradients, optimizer state and generators as they are now."""
        try:
            self._write_state(self._names())
        except Exception as error:  # a mistake of ours costs the replay elsewhere, not this one
            self._writer.note(f"The state before the step was not saved: {type(error).__name__}: {error}.")

    def _write_state(self, names: StateNames) -> None:
        with self._writer.replay_state() as file:
            for key, x in names.tensors():
                _add(file, key, x)
                if isinstance(x, nn.Parameter) and x.grad is not None:
                    _add(file, f"gradient/{key}", x.grad)
            values = _write_optimizers(file, names)
            generators = _write_generators(file, Generators.now())
        self._facts = {
            "models": [_describe_model(model) for model in names.models],
            "optimizers": [type(optimizer).__name__ for optimizer in names.optimizers],
            "optimizer_values": values,
            "scalers": [_scaler_facts(scaler) for scaler in self._scalers],
            "generators": generators,
            "in_eval": [
                [number, path]
                for number, model in enumerate(names.models)
                for path, module in named_places(model)
                if not module.training
            ],
        }

    def write_batch(self, tape: StepTape) -> None:
        """Write the tensors that came into the step from outside, in the order they were met, and the step itself."""
        names = self._names()
        told = TapeWriter(tape, names, self._scalers)
        calls: list[JsonValue] = []
        untold: str | None = None
        try:
            calls = told.calls()
        except NotSerializable as reason:
            untold = str(reason)
        except Exception as error:  # a mistake of ours costs the replay elsewhere, not the watch
            untold = f"{type(error).__name__}: {error}"
        with self._writer.replay_batch() as file:
            for number, external in enumerate(tape.external):
                _add(file, f"outside{number}", external.copy)
            for number, state in enumerate(told.generators):
                _add(file, f"generator{number}", state)
        external_facts: list[JsonValue] = [
            {
                "requires_grad": external.requires_grad,
                "stride": list(external.copy.stride()) if external.copy.layout is torch.strided else [],
                "in_batch": number in told.in_batch,
            }
            for number, external in enumerate(tape.external)
        ]
        if not self._facts:
            return  # without the state there is nothing to go on from
        self._writer.write_replay_tape(
            {"step": tape.step, **self._facts, "outside": external_facts, "calls": calls, "untold": untold}
        )

    def _names(self) -> StateNames:
        """Name what belongs to this training; optimizers of another one in the same process are none of it."""
        models = self._sites.models
        moved = {id(parameter) for model in models for parameter in model.parameters()}
        own = [o for o in self._training.optimizers if not moved.isdisjoint(map(id, parameters_of(o)))]
        return StateNames(models, own or self._training.optimizers)


def _write_optimizers(file: TensorWriter, names: StateNames) -> dict[str, JsonValue]:
    """Write the tensors of the optimizers' state; return its plain values."""
    values: dict[str, JsonValue] = {}
    for number, optimizer in enumerate(names.optimizers):
        places = {id(parameter): place for place, parameter in enumerate(parameters_of(optimizer))}
        for parameter, state in optimizer.state.items():
            if id(parameter) not in places or not isinstance(state, dict):
                continue
            for key, value in state.items():
                name = f"{optimizer_prefix(number)}{places[id(parameter)]}/{key}"
                if isinstance(value, Tensor):
                    _add(file, name, value)
                elif isinstance(value, (bool, int, float, str)):
                    values[name] = value
    return values


def _write_generators(file: TensorWriter, generators: Generators) -> JsonValue:
    """Write the states of the generators; return what is not a tensor of them."""
    _add(file, "generator/torch", generators.torch_cpu)
    for number, state in enumerate(generators.devices):
        _add(file, f"generator/device{number}", state)
    kind, keys, *rest = generators.numpy
    _add(file, "generator/numpy", torch.from_numpy(np.asarray(keys).astype(np.int64)))
    version, internal, gauss = generators.python
    _add(file, "generator/python", torch.tensor(internal, dtype=torch.int64))
    return {"numpy": [kind, *rest], "python": [version, gauss]}


def _scaler_facts(scaler: torch.amp.GradScaler) -> JsonValue:
    return {"device": scaler._device, **scaler.state_dict()}


def _describe_model(model: nn.Module) -> JsonValue:
    """Name the class of a model, and for a part of torch.nn without parameters, such as a loss, how to make it."""
    kind = type(model)
    is_torchs = kind.__module__.startswith("torch.nn.modules.") and getattr(torch.nn, kind.__name__, None) is kind
    has_own_state = next(model.parameters(), None) is not None or next(model.children(), None) is not None
    if not is_torchs or has_own_state:
        return {"class": kind.__name__, "attributes": None}
    return {"class": kind.__name__, "attributes": _plain_attributes(model), "buffers": list(model._buffers)}


def _plain_attributes(module: nn.Module) -> dict[str, JsonValue]:
    attributes: dict[str, Any] = vars(module)
    return {
        key: value
        for key, value in attributes.items()
        if not key.startswith("_") and (value is None or isinstance(value, (bool, int, float, str)))
    }


def _add(file: TensorWriter, key: str, x: Tensor) -> None:
    """Add a tensor; of one that is spread over ranks the part of this rank. Sparse ones have no form in the file."""
    plain = x.detach()
    if hasattr(plain, "to_local"):
        plain = plain.to_local()
    dtype = file_dtype(plain)
    if dtype is not None and plain.layout is torch.strided:
        file.add(key, bytes_of(plain), dtype=dtype, shape=tuple(plain.shape))
