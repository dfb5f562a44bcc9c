"""Reads a saved tape, for models and optimizers that were built anew, with or without another recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.errors import ReplayError
from roundoff.precision.optimizer import RecipeOptimizer
from roundoff.record.structure import parameters_of
from roundoff.replay.arguments import ExternalTensor, Result
from roundoff.replay.saved.saved_step import ModulePlace, StateNames
from roundoff.replay.saved.step_inputs import CLIPS, SCALER_METHODS
from roundoff.replay.saved.tape_json import (
    SavedAmbient,
    SavedBackward,
    SavedCall,
    SavedClipping,
    SavedExternalTensor,
    SavedFunctionCall,
    SavedLine,
    SavedModelCall,
    SavedOptimizerStep,
    SavedScalerCall,
    SavedTape,
    SavedZeroGrad,
    function_named,
)
from roundoff.replay.step_tape import (
    Ambient,
    BackwardEntry,
    FunctionEntry,
    LoopEntry,
    ModelEntry,
    StepEntry,
    StepTape,
    TapeEntry,
)
from roundoff.runs import TensorFile

_NARROW = (torch.float16, torch.bfloat16)


class Devices:
    """Where the tensors of a saved step go: to the devices of the models that were built, if they were not on the CPU.

    So a step that was saved on an accelerator runs on another one, or on the CPU, if the builder puts the model there.
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        used = {x.device for model in models for x in (*model.parameters(), *model.buffers())}
        self._by_name = {str(device): device for device in used}
        others = sorted(str(device) for device in used if device.type != "cpu")
        self._usual = self._by_name[others[0]] if others else torch.device("cpu")

    def find(self, saved: str) -> torch.device:
        """Return the device for one that had this name."""
        is_cpu = str(saved).partition(":")[0] == "cpu"
        return torch.device("cpu") if is_cpu else self._by_name.get(saved, self._usual)


def read_external_tensors(
    tensors: Sequence[SavedExternalTensor], batch: TensorFile, *, is_wide: bool, devices: Devices | None = None
) -> list[ExternalTensor]:
    """Return the external tensors of the step, with the memory layout that they had.

    Args:
        tensors: what the saved step says about them.
        batch: the file with the tensors.
        is_wide: turn 16-bit floats into fp32, which a recipe starts from.
        devices: where to put them; on the CPU by default.
    """
    found = []
    devices = devices or Devices(())
    for number, facts in enumerate(tensors):
        key = f"outside{number}"
        if key not in batch:
            raise _unreadable_error(
                f"the tensor '{key}' was not saved: it is sparse, or its dtype cannot be written to a file"
            )
        x = batch.torch(key)
        if is_wide and x.dtype in _NARROW:
            x = x.float()
        try:
            placed = _lay_out(x, facts["stride"]).to(devices.find(facts.get("device", "cpu")))
            found.append(ExternalTensor(placed.requires_grad_(facts["requires_grad"])))
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise _unreadable_error(f"the tensor '{key}' does not match its description: {error}") from error
    return found


def _lay_out(x: Tensor, stride: Sequence[int]) -> Tensor:
    """Return a copy with other strides, unless they need more memory than the tensor: the file may be malicious."""
    extent = 1 + sum((size - 1) * distance for size, distance in zip(x.shape, stride, strict=True))
    if extent > max(x.numel(), 1):
        raise ValueError(f"strides {stride} leave gaps in a tensor of {list(x.shape)}")
    return torch.empty_strided(x.shape, stride, dtype=x.dtype).copy_(x)


class TapeReader:
    """Turns saved calls into entries of a tape, for models and optimizers that have the same names.

    Args:
        names: of the models and optimizers that were built.
        outside: the tensors that came from outside.
        batch: the file with the generators' states.
        on_loss: called with each loss before backward starts from it.
        recipes: the optimizers of a recipe, if the step is to be run with one; they scale, unscale and step.
    """

    def __init__(
        self,
        names: StateNames,
        external: Sequence[ExternalTensor],
        batch: TensorFile,
        *,
        on_loss: Callable[[Tensor], None],
        recipes: Sequence[RecipeOptimizer] = (),
    ) -> None:
        self._names = names
        self._external = external
        self._batch = batch
        self._on_loss = on_loss
        self._recipes = recipes
        self._devices = Devices(names.models)
        self._num_models = 0
        self._scalers: list[torch.amp.GradScaler] = []
        self._made_by: list[SavedModelCall | SavedFunctionCall] = []
        """The call that returned each result."""

    def read(self, tape: SavedTape) -> StepTape:
        """Return the step, without the calls that need an optimizer if none was built."""
        try:
            self._scalers = [_scaler(facts, self._devices) for facts in tape["scalers"]]
            return StepTape(tape["step"], self._entries(tape["calls"]), list(self._external))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise _unreadable_error(f"{type(error).__name__}: {error}") from error

    def _entries(self, calls: Sequence[SavedCall]) -> list[TapeEntry]:
        entries: list[TapeEntry] = []
        for call in calls:
            if call["call"] == "step" and self._optimizer(call["optimizer"]) is None:
                for closure in call["closures"]:
                    entries.extend(self._entries(closure))
            elif call["call"] != "zero_grad" or self._value(call["of"]) is not None:
                if call["call"] == "backward" and call["loss"] is not None:
                    entries.append(
                        LoopEntry(self._on_loss, (self._undo_scaling(self._value(call["roots"])[0]),), {}, None)
                    )
                entries.append(self._entry(call))
        return entries

    def _entry(self, call: SavedCall) -> TapeEntry:
        if call["call"] == "model":
            self._made_by += [call] * call["num_results"]
            return self._model_call(call)
        line = None if call["line"] is None else (call["line"][0], call["line"][1])
        if call["call"] == "function":
            self._made_by += [call] * call["num_results"]
            function = function_named(call["name"])
            if function is None:
                raise _unreadable_error(f"torch has no function '{call['name']}'")
            args, kwargs = self._arguments(call)
            return FunctionEntry(function, args, kwargs, self._ambient(call["ambient"]), line, call["num_results"])
        if call["call"] == "backward":
            return self._backward(call, line)
        if call["call"] == "step":
            return self._step(call, line)
        return self._loop_call(call, line)

    def _model_call(self, call: SavedModelCall) -> ModelEntry:
        generators = (self._batch.torch(f"generator{self._num_models}"), ())
        self._num_models += 1
        args, kwargs = self._arguments(call)
        return ModelEntry(
            self._value(call["module"]), args, kwargs, self._ambient(call["ambient"]), generators,
            call["is_training"], call["num_results"],
        )  # fmt: skip

    def _backward(self, call: SavedBackward, line: SavedLine) -> TapeEntry:
        roots = self._value(call["roots"])
        if self._recipes:
            return LoopEntry(self._recipes[0].backward, (self._undo_scaling(roots[0]),), {}, line)
        loss = None
        if call["loss"] is not None:
            dtype, value = call["loss"]
            loss = torch.tensor(value, dtype=_torch_constant(dtype, torch.dtype))
        return BackwardEntry(roots, self._value(call["args"]), {}, line, loss)

    def _step(self, call: SavedOptimizerStep, line: SavedLine) -> StepEntry:
        optimizer = self._optimizer(call["optimizer"])
        assert optimizer is not None, "_entries leaves out steps without an optimizer"
        settings = [{key: self._value(value) for key, value in group.items()} for group in call["settings"]]
        return StepEntry(optimizer, settings, line, [self._entries(closure) for closure in call["closures"]])

    def _loop_call(self, call: SavedZeroGrad | SavedClipping | SavedScalerCall, line: SavedLine) -> LoopEntry:
        args, kwargs = self._arguments(call)
        if call["call"] == "zero_grad":
            return LoopEntry(self._value(call["of"]).zero_grad, args, kwargs, line)
        if "scaler" in call and call["call"] in SCALER_METHODS.values():
            return self._scaler_call(call, args, kwargs, line)
        if "scaler" in call or call["call"] not in CLIPS:
            raise _unreadable_error(f"it has a call '{call['call']}', which this version does not know")
        if self._recipes:
            return LoopEntry(_clipping_with(self._recipes, call["call"]), (args[1],), {}, line)
        return LoopEntry(CLIPS[call["call"]], args, kwargs, line)

    def _scaler_call(self, call: SavedScalerCall, args: Any, kwargs: Any, line: SavedLine) -> LoopEntry:
        method = call["call"].removeprefix("scaler.")
        if method != "update" and args[0] is None:
            return LoopEntry(_nothing, (), {}, line)  # no optimizer was built
        if self._recipes:  # which scale by themselves
            return LoopEntry(args[0].step if method == "step" else _nothing, (), {}, line)
        return LoopEntry(getattr(self._scalers[call["scaler"]], method), args, kwargs, line)

    def _undo_scaling(self, root: Any) -> Any:
        """Return the loss that a scaler multiplied to get the root of a backward; without a scaler, the root itself."""
        made_by = self._made_by[root.number] if self._scalers and isinstance(root, Result) else None
        if made_by is None or made_by.get("name") != "torch.Tensor.mul":
            return root
        loss, scale = self._value(made_by["args"])[:2]
        return loss if isinstance(scale, ExternalTensor) and scale.copy.numel() == 1 else root

    def _arguments(
        self, call: SavedModelCall | SavedFunctionCall | SavedZeroGrad | SavedClipping | SavedScalerCall
    ) -> tuple[Any, Any]:
        return self._value(call["args"]), self._value(call["kwargs"])

    def _value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if not isinstance(value, dict):
            return value
        [(kind, content)] = value.items()
        return _READERS[kind](self, content)

    def _state(self, key: str) -> Tensor:
        x = self._names.tensor(key)
        if x is None:
            raise _unreadable_error(f"it uses '{key}', which was not built: the builder must also return the optimizer")
        return x

    def _module(self, place: tuple[int, str]) -> Any:
        module = self._names.module_at(ModulePlace(*place))
        if module is None:
            raise _unreadable_error(f"it calls the module '{place[1]}', which the model that was built does not have")
        return module

    def _optimizer(self, number: int) -> Optimizer | None:
        optimizers = self._recipes or self._names.optimizers
        return optimizers[number] if optimizers else None

    def _ambient(self, ambient: SavedAmbient) -> Ambient:
        if self._recipes:
            return Ambient(ambient["gradients"], ())  # the recipe decides what is narrow
        casts = tuple(
            (self._devices.find(kind).type, enabled, _torch_constant(dtype, torch.dtype))
            for kind, enabled, dtype in ambient["autocast"]
            if enabled or self._devices.find(kind).type == kind
        )
        return Ambient(ambient["gradients"], casts)


_READERS: dict[str, Callable[[TapeReader, Any], Any]] = {
    "tuple": lambda reader, items: tuple(reader._value(item) for item in items),
    "dict": lambda reader, pairs: {reader._value(key): reader._value(item) for key, item in pairs},
    "result": lambda reader, number: Result(number),
    "outside": lambda reader, number: reader._external[number],
    "state": TapeReader._state,
    "module": TapeReader._module,
    "optimizer": TapeReader._optimizer,
    "dtype": lambda reader, name: _torch_constant(name, torch.dtype),
    "memory_format": lambda reader, name: _torch_constant(name, torch.memory_format),
    "layout": lambda reader, name: _torch_constant(name, torch.layout),
    "device": lambda reader, name: reader._devices.find(name),
    "slice": lambda reader, parts: slice(*(reader._value(part) for part in parts)),
    "ellipsis": lambda reader, _: ...,
}
"""How to read a value of a type that JSON lacks, by the one key of the dict it was written as."""


def _torch_constant(name: str, kind: type[Any]) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, kind):
        raise _unreadable_error(f"torch has no {kind.__name__} '{name}'")
    return found


def _scaler(facts: Mapping[str, Any], devices: Devices) -> torch.amp.GradScaler:
    device = devices.find(facts["device"])
    scaler = torch.amp.GradScaler(device.type)
    scaler.load_state_dict({key: value for key, value in facts.items() if key != "device"})
    scaler.scale(torch.zeros((), device=device))  # it creates its tensors on first use
    return scaler


def _nothing() -> None:
    """Do nothing."""


def _clipping_with(recipes: Sequence[RecipeOptimizer], how: str) -> Callable[[Any], None]:
    def clip(limit: float) -> None:
        for optimizer in recipes:
            if how == "clip_grad_value":
                optimizer.unscale_()
                torch.nn.utils.clip_grad_value_(parameters_of(optimizer), limit)
            else:
                optimizer.clip_grad_norm_(limit)

    return clip


def _unreadable_error(why: str) -> ReplayError:
    return ReplayError.explain(
        "The saved step cannot be read.", why=f"{why}.", fix="let the builder return (model, optimizer, loss)."
    )
