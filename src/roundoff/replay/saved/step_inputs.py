"""Writes what a replayed step started from and what its loop did, so that another process can run it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.accelerator import Generators
from roundoff.record.loop.sites import Sites, named_places
from roundoff.record.structure import parameters_of
from roundoff.record.tensor_bytes import bytes_of, file_dtype
from roundoff.replay.arguments import Container, ExternalTensor, Live, Result
from roundoff.replay.saved.saved_step import StateNames, optimizer_prefix
from roundoff.replay.saved.tape_json import (
    SavedAmbient,
    SavedCall,
    SavedClipping,
    SavedExternalTensor,
    SavedGenerators,
    SavedModel,
    SavedModelCall,
    SavedScalerCall,
    SavedState,
    SavedTape,
    SavedZeroGrad,
    name_of_function,
)
from roundoff.replay.state import Training
from roundoff.replay.step_tape import Ambient, BackwardEntry, FunctionEntry, LoopEntry, ModelEntry, StepTape, TapeEntry
from roundoff.runs import JsonValue, RunWriter, TensorWriter
from roundoff.torch_private import clip_function, device_of_scaler

T = TypeVar("T")

CLIPS: dict[Literal["clip_grads_with_norm", "clip_grad_value"], Callable[..., Any]] = {
    "clip_grads_with_norm": clip_function(),
    "clip_grad_value": torch.nn.utils.clip_grad_value_,
}
"""The functions that may clip gradients. The first is private: it does the work of `clip_grad_norm_`."""
SCALER_METHODS: dict[str, Literal["scaler.unscale_", "scaler.step", "scaler.update"]] = {
    "unscale_": "scaler.unscale_", "step": "scaler.step", "update": "scaler.update",
}  # fmt: skip
"""The methods of a GradScaler that may be called, besides `scale`, which is a product like any other."""


class StepInputsWriter:
    """Writes the state before a step, its external tensors, and its calls."""

    def __init__(self, writer: RunWriter, training: Training, sites: Sites) -> None:
        self._writer = writer
        self._training = training
        self._sites = sites
        self._state: SavedState | None = None
        self._scalers = [scaler for scaler in training.scalers if type(scaler) is torch.amp.GradScaler]

    def write_state(self) -> None:
        """Write parameters, buffers, gradients, optimizer state and generators as they are now."""
        try:
            self._write_state(self._names())
        except Exception as error:  # then only this process can replay the step
            self._writer.note(f"The state before the step was not saved: {type(error).__name__}: {error}.")

    def _write_state(self, names: StateNames) -> None:
        with self._writer.replay_state() as file:
            for key, x in names.tensors():
                _add(file, key, x)
                if isinstance(x, nn.Parameter) and x.grad is not None:
                    _add(file, f"gradient/{key}", x.grad)
            values = _write_optimizers(file, names)
            generators = _write_generators(file, Generators.now())
        self._state = {
            "models": [_describe_model(model) for model in names.models],
            "optimizers": [type(optimizer).__name__ for optimizer in names.optimizers],
            "optimizer_values": values,
            "scalers": [_describe_scaler(scaler) for scaler in self._scalers],
            "generators": generators,
            "in_eval": [
                (number, path)
                for number, model in enumerate(names.models)
                for path, module in named_places(model)
                if not module.training
            ],
        }

    def write_batch(self, tape: StepTape) -> None:
        """Write the external tensors of the step, in the order of their first use, and its calls."""
        names = self._names()
        tape_writer = TapeWriter(tape, names, self._scalers)
        calls: list[SavedCall] = []
        obstacle: str | None = None
        try:
            calls = tape_writer.calls()
        except NotSerializable as reason:
            obstacle = str(reason)
        except Exception as error:  # then only this process can replay the step
            obstacle = f"{type(error).__name__}: {error}"
        with self._writer.replay_batch() as file:
            for number, external in enumerate(tape.external):
                _add(file, f"outside{number}", external.copy)
            for number, state in enumerate(tape_writer.generators):
                _add(file, f"generator{number}", state)
        external_tensors: list[SavedExternalTensor] = [
            {
                "requires_grad": external.requires_grad,
                "stride": list(external.copy.stride()) if external.copy.layout is torch.strided else [],
                "in_batch": number in tape_writer.in_batch,
                "device": str(external.copy.device),
            }
            for number, external in enumerate(tape.external)
        ]
        if self._state is None:
            return  # it could not be saved, so there is nothing to start from
        saved: SavedTape = {
            "step": tape.step, **self._state, "outside": external_tensors, "calls": calls, "untold": obstacle,
        }  # fmt: skip
        self._writer.write_replay_tape(cast("Mapping[str, JsonValue]", saved))

    def _names(self) -> StateNames:
        """Name the parts of this training, without the optimizers of another one in the same process."""
        models = self._sites.models
        moved = {id(parameter) for model in models for parameter in model.parameters()}
        own = [o for o in self._training.optimizers if not moved.isdisjoint(map(id, parameters_of(o)))]
        return StateNames(models, own or self._training.optimizers)


def _write_optimizers(file: TensorWriter, names: StateNames) -> dict[str, JsonValue]:
    """Write the tensors in the state of the optimizers; return its plain values."""
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


def _write_generators(file: TensorWriter, generators: Generators) -> SavedGenerators:
    """Write the states of the generators; return the parts that are not tensors."""
    _add(file, "generator/torch", generators.torch_cpu)
    for number, state in enumerate(generators.devices):
        _add(file, f"generator/device{number}", state)
    kind, keys, *rest = generators.numpy
    _add(file, "generator/numpy", torch.from_numpy(np.asarray(keys).astype(np.int64)))
    version, internal, gauss = generators.python
    _add(file, "generator/python", torch.tensor(internal, dtype=torch.int64))
    return {"numpy": [kind, *rest], "python": [version, gauss]}


def _describe_scaler(scaler: torch.amp.GradScaler) -> dict[str, Any]:
    return {"device": device_of_scaler(scaler), **scaler.state_dict()}  # the constructor needs it


def _describe_model(model: nn.Module) -> SavedModel:
    """Return the class of a model, and the attributes of a torch.nn module without parameters, such as a loss."""
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
    """Add a tensor; of a sharded one, the part of this rank. Sparse tensors cannot be written."""
    plain = x.detach()
    if hasattr(plain, "to_local"):
        plain = plain.to_local()
    dtype = file_dtype(plain)
    if dtype is not None and plain.layout is torch.strided:
        file.add(key, bytes_of(plain), dtype=dtype, shape=tuple(plain.shape))


class NotSerializable(Exception):
    """A step holds something that cannot be written as JSON, so the builder of a replay has to return the loss."""


class TapeWriter:
    """Converts the calls of one step to JSON values, in which tensors are numbers or names."""

    def __init__(self, tape: StepTape, names: StateNames, scalers: Sequence[torch.amp.GradScaler] = ()) -> None:
        self.generators: list[Tensor] = []
        """The states of torch's generator before each call of a model, to be written to the batch file."""
        self.in_batch: set[int] = set()
        """The numbers of the external tensors that models and functions used, as opposed to backward and clipping."""
        self._tape = tape
        self._names = names
        self._scalers = {id(scaler): number for number, scaler in enumerate(scalers)}
        self._external = {id(external): number for number, external in enumerate(tape.external)}
        self._is_computing = False

    def calls(self) -> list[SavedCall]:
        """Return the calls of the loop, in order.

        Raises:
            NotSerializable: a call holds something that cannot be written as JSON.
        """
        return self._entries(self._tape.entries)

    def _entries(self, entries: Sequence[TapeEntry]) -> list[SavedCall]:
        return [self._entry(entry) for entry in entries]

    def _entry(self, entry: TapeEntry) -> SavedCall:
        self._is_computing = isinstance(entry, (ModelEntry, FunctionEntry))
        if isinstance(entry, ModelEntry):
            return self._model_call(entry)
        if isinstance(entry, FunctionEntry):
            return {
                "call": "function", "name": _name(entry.function), "args": self.value(entry.args),
                "kwargs": self.value(entry.kwargs), "ambient": _ambient(entry.ambient), "line": entry.line,
                "num_results": entry.num_results,
            }  # fmt: skip
        if isinstance(entry, BackwardEntry):
            return {
                "call": "backward", "roots": self.value(entry.roots), "args": self.value(entry.args),
                "line": entry.line,
                "loss": None if entry.loss is None else (_short(entry.loss.dtype), float(entry.loss)),
            }  # fmt: skip
        if isinstance(entry, LoopEntry):
            return self._loop_call(entry)
        return {
            "call": "step", "optimizer": self._optimizer(entry.optimizer), "line": entry.line,
            "settings": [self._settings(group) for group in entry.settings],
            "closures": [self._entries(closure) for closure in entry.closures],
        }  # fmt: skip

    def _model_call(self, call: ModelEntry) -> SavedModelCall:
        if call.replaced:
            raise NotSerializable("the step calls a module with other weights than its own")
        self.generators.append(call.generators[0])
        return {
            "call": "model", "module": self.value(call.module), "args": self.value(call.args),
            "kwargs": self.value(call.kwargs), "ambient": _ambient(call.ambient), "is_training": call.is_training,
            "num_results": call.num_results,
        }  # fmt: skip

    def _loop_call(self, entry: LoopEntry) -> SavedClipping | SavedZeroGrad | SavedScalerCall:
        args, kwargs = self.value(entry.args), self.value(entry.kwargs)
        owner = getattr(entry.function, "__self__", None)
        method = getattr(entry.function, "__name__", "")
        for clipping, function in CLIPS.items():
            if method == function.__name__:
                return {"call": clipping, "args": args, "kwargs": kwargs, "line": entry.line}
        if method == "zero_grad" and isinstance(owner, (nn.Module, Optimizer)):
            return {"call": "zero_grad", "of": self.value(owner), "args": args, "kwargs": kwargs, "line": entry.line}
        if id(owner) in self._scalers and method in SCALER_METHODS:
            number = self._scalers[id(owner)]
            call = SCALER_METHODS[method]
            return {"call": call, "scaler": number, "args": args, "kwargs": kwargs, "line": entry.line}
        raise NotSerializable(f"the step calls {type(owner).__name__}.{method}, whose state is not saved")

    def value(self, value: Any) -> JsonValue:
        """Convert one value; a dict becomes a list of pairs, and a type that JSON lacks a dict with one key."""
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
        if isinstance(value, Live):
            return self.value(value.get())
        if isinstance(value, Tensor):
            return {"state": _require(self._names.key_of(value), f"a {type(value).__name__} that belongs to no model")}
        if isinstance(value, nn.Module):
            place = _require(self._names.place_of(value), f"a {type(value).__name__} that belongs to no model")
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
        raise NotSerializable(f"an argument of a call is a {type(value).__name__}")

    def _optimizer(self, optimizer: Optimizer) -> int:
        return _require(
            self._names.number_of(optimizer), f"an optimizer {type(optimizer).__name__} that belongs to no model"
        )

    def _settings(self, group: dict[str, Any]) -> dict[str, JsonValue]:
        """Convert the learning rate and other settings; what JSON cannot hold stays as the builder makes it."""
        settings: dict[str, JsonValue] = {}
        for key, value in group.items():
            try:
                settings[key] = value.tolist() if isinstance(value, Tensor) else self.value(value)
            except NotSerializable:
                continue
        return settings


def _require(found: T | None, what: str) -> T:
    if found is None:
        raise NotSerializable(f"the step uses {what}")
    return found


def _name(function: Any) -> str:
    return _require(name_of_function(function), f"the function {getattr(function, '__name__', function)}")


def _ambient(ambient: Ambient) -> SavedAmbient:
    casts = [(kind, enabled, _short(dtype)) for kind, enabled, dtype in ambient.autocast]
    return {"gradients": ambient.gradients, "autocast": casts}


def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")
