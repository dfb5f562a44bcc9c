"""What a replayed step started from, written so that another process can run the step again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from roundoff.record.sites import Sites, named_places
from roundoff.record.tensor_bytes import bytes_of, file_dtype
from roundoff.runs import JsonValue, RunWriter, TensorWriter
from roundoff.watch.generators import Generators
from roundoff.watch.state import Training, parameters_of
from roundoff.watch.state_names import StateNames, optimizer_prefix
from roundoff.watch.step_tape import StepTape
from roundoff.watch.tape_writing import CannotTell, TapeWriter


class Before:
    """Writes the state before a step, the tensors that came from outside, and what the loop did."""

    def __init__(self, writer: RunWriter, training: Training, sites: Sites) -> None:
        self._writer = writer
        self._training = training
        self._sites = sites
        self._facts: dict[str, JsonValue] = {}
        self._scalers = [helper for helper in training.helpers if type(helper) is torch.amp.GradScaler]

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
            "models": [_described(model) for model in names.models],
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
        except CannotTell as reason:
            untold = str(reason)
        except Exception as error:  # a mistake of ours costs the replay elsewhere, not the watch
            untold = f"{type(error).__name__}: {error}"
        with self._writer.replay_batch() as file:
            for number, outside in enumerate(tape.outside):
                _add(file, f"outside{number}", outside.copy)
            for number, state in enumerate(told.generators):
                _add(file, f"generator{number}", state)
        outside_facts: list[JsonValue] = [
            {
                "requires_grad": outside.requires_grad,
                "stride": list(outside.copy.stride()) if outside.copy.layout is torch.strided else [],
                "in_batch": number in told.in_batch,
            }
            for number, outside in enumerate(tape.outside)
        ]
        if not self._facts:
            return  # without the state there is nothing to go on from
        self._writer.write_replay_tape(
            {"step": tape.step, **self._facts, "outside": outside_facts, "calls": calls, "untold": untold}
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


def _described(model: nn.Module) -> JsonValue:
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
