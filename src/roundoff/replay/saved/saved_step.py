"""Reads a saved step: what it holds, and its state, loaded by name into models and optimizers that were built anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.errors import ReplayError
from roundoff.record.accelerator import Generators
from roundoff.record.loop.sites import named_places
from roundoff.record.structure import outermost_optimizers, parameters_of
from roundoff.replay.saved.builder import Built
from roundoff.replay.saved.tape_json import SavedGenerators, SavedModel, SavedTape
from roundoff.runs import JsonValue, Origin, Run, TensorFile
from roundoff.words import join_names, plural


@dataclass(frozen=True, slots=True)
class ModulePlace:
    """The place of a module: the number of its model, and its path in it."""

    model: int
    path: str


class StateNames:
    """Names the parts of a training: `model/fc.weight`, `model1/fc.weight` for the second model, `optimizer/0/exp_avg`.

    Optimizers are in the order of the first parameter of each; parameters that belong to no model are named after their
    place in an optimizer, `optimizer/0/parameter`.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        self.models = list(models)
        self._modules: dict[int, ModulePlace] = {}
        self._by_place: dict[ModulePlace, nn.Module] = {}
        self._tensors: dict[str, Tensor] = {}
        self._keys: dict[int, str] = {}
        for number, model in enumerate(self.models):
            self._name_model(number, model)
        order = {id(x): place for place, x in enumerate(self._tensors.values())}
        self.optimizers = sorted(
            outermost_optimizers(optimizers),
            key=lambda optimizer: min((order.get(id(p), len(order)) for p in parameters_of(optimizer)), default=0),
        )
        for number, optimizer in enumerate(self.optimizers):
            for place, parameter in enumerate(parameters_of(optimizer)):
                if id(parameter) not in self._keys:
                    self._name(f"{optimizer_prefix(number)}{place}/parameter", parameter)

    def module_at(self, place: ModulePlace) -> nn.Module | None:
        """Return the module at a place; the outermost one if wrappers share it."""
        return self._by_place.get(place)

    def place_of(self, module: nn.Module) -> ModulePlace | None:
        """Return the place of a module; None if it belongs to no model."""
        return self._modules.get(id(module))

    def tensor(self, key: str) -> Tensor | None:
        """Return the parameter or buffer with that name, or None."""
        return self._tensors.get(key)

    def key_of(self, x: Tensor) -> str | None:
        """Return the name of a parameter or buffer; None if it is neither."""
        return self._keys.get(id(x))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter and buffer once, with its name."""
        yield from self._tensors.items()

    def number_of(self, optimizer: Optimizer) -> int | None:
        """Return the number of an optimizer, or of one that shares its state as a wrapper does; None if unknown."""
        states = [id(known.state) for known in self.optimizers]
        return states.index(id(optimizer.state)) if id(optimizer.state) in states else None

    def _name_model(self, number: int, model: nn.Module) -> None:
        prefix = model_prefix(number)
        for path, module in named_places(model):
            place = ModulePlace(number, path)
            self._modules.setdefault(id(module), place)
            self._by_place.setdefault(place, module)
            for name, x in (*module._parameters.items(), *module._buffers.items()):
                if x is not None:
                    self._name(prefix + (f"{path}.{name}" if path else name), x)

    def _name(self, key: str, x: Tensor) -> None:
        if id(x) not in self._keys and key not in self._tensors:
            self._keys[id(x)] = key
            self._tensors[key] = x


def model_prefix(number: int) -> str:
    """Return the prefix of the names of a model's tensors."""
    return f"model{number or ''}/"


def optimizer_prefix(number: int) -> str:
    """Return the prefix of the names of an optimizer's tensors."""
    return f"optimizer{number or ''}/"


_FIELDS: dict[str, type] = {
    "step": int, "models": list, "optimizers": list, "optimizer_values": dict, "scalers": list, "generators": dict,
    "in_eval": list, "outside": list, "calls": list,
}  # fmt: skip
_PARTS: dict[str, tuple[str, ...]] = {
    "models": ("class", "attributes"), "outside": ("in_batch", "requires_grad", "stride"),
}  # fmt: skip
"""The fields that each model and each external tensor must have."""
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBatchTensor:
    """An external tensor of the step."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    least: float | None
    """The smallest finite number; None if there is none."""
    largest: float | None
    num_nonfinite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStep:
    """What was saved of one step on one rank."""

    step: int
    rank: int
    origin: Origin | None
    models: tuple[str, ...]
    """The classes of the models that a builder must return, in order."""
    optimizers: tuple[str, ...]
    num_numbers: int
    """How many numbers the parameters and buffers hold."""
    batch: tuple[SavedBatchTensor, ...]
    needs_loss: str | None
    """Why the builder must also return the loss; None if the calls of the loop were saved."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        return asdict(self)


def read_saved_tape(replayed: Run, *, rank: int) -> SavedTape:
    """Return the tape of a saved step.

    Raises:
        ReplayError: the folder does not hold a step that can be run again.
    """
    tape: Any = replayed.replay_tape(rank=rank)
    if tape is not None and replayed.has_replay_state(rank=rank):
        return _check_tape(tape, replayed)
    info = replayed.replay_info(rank=rank)
    why = "the calls of its loop were not saved: an older version wrote the run, or the process ended too early"
    if info is not None and info.note is not None:
        why = f"the state before it is not known, since {info.note}"
    raise ReplayError.explain(f"'{replayed.path}' does not hold a step that can be run again.", why=f"{why}.")


def _check_tape(tape: dict[str, Any], replayed: Run) -> SavedTape:
    """Return the tape if it has all fields; the contents of calls are checked by `TapeReader`."""
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(tape.get(name), kind)]
    wrong += [name for name, keys in _PARTS.items() if name not in wrong and not _all_have(tape[name], keys)]
    if wrong:
        raise ReplayError.explain(
            f"The saved step in '{replayed.path}' cannot be read.",
            why=f"its tape has no valid {', '.join(wrong)}.",
            fix="use another copy of the run, or the version of roundoff that wrote it.",
        )
    return cast("SavedTape", tape)


def _all_have(parts: list[Any], keys: tuple[str, ...]) -> bool:
    return all(isinstance(part, dict) and part.keys() >= set(keys) for part in parts)


def describe_saved_step(replayed: Run, *, rank: int = 0) -> SavedStep:
    """Describe what the folder of a replayed step holds.

    Raises:
        ReplayError: the folder does not hold a step that can be run again.
    """
    tape = read_saved_tape(replayed, rank=rank)
    state, batch = replayed.replay_state(rank=rank), replayed.replay_batch(rank=rank)
    in_batch = [number for number, facts in enumerate(tape["outside"]) if facts["in_batch"]]
    return SavedStep(
        step=tape["step"],
        rank=rank,
        origin=replayed.origin(rank=rank),
        models=tuple(model["class"] for model in tape["models"] if model["attributes"] is None),
        optimizers=tuple(tape["optimizers"]),
        num_numbers=sum(state[key].size for key in state if key.startswith("model")),
        batch=tuple(_describe_tensor(batch, f"outside{number}") for number in in_batch if f"outside{number}" in batch),
        needs_loss=tape.get("untold"),
    )


def _describe_tensor(file: TensorFile, key: str) -> SavedBatchTensor:
    x = file.torch(key)
    name = str(x.dtype).removeprefix("torch.")
    if x.is_complex():
        x = torch.view_as_real(x)
    wide = x.double()
    finite = wide[wide.isfinite()]
    return SavedBatchTensor(
        name=key,
        dtype=name,
        shape=file.entry(key).shape,
        least=float(finite.min()) if finite.numel() else None,
        largest=float(finite.max()) if finite.numel() else None,
        num_nonfinite=wide.numel() - finite.numel(),
    )


def models_of(built: Built, tape: SavedTape, saved: TensorFile) -> list[nn.Module]:
    """Return the models of the step in order: those that were built, and rebuilt losses of torch.nn."""
    described = tape["models"]
    if len(built.models) == len(described):
        return list(built.models)
    wanted = [entry["class"] for entry in described if entry["attributes"] is None]
    if len(built.models) != len(wanted):
        raise ReplayError.explain(
            f"The builder returns {plural(len(built.models), 'model')}, but the step has {len(wanted)}.",
            why=f"its loop calls {', '.join(wanted)}.",
            fix=f"return a list of them, in this order: [{', '.join(wanted)}].",
        )
    built_ones = iter(built.models)
    return [
        next(built_ones) if entry["attributes"] is None else _rebuild_module(entry, model_prefix(number), saved)
        for number, entry in enumerate(described)
    ]


def load_state(names: StateNames, tape: SavedTape, saved: TensorFile) -> None:
    """Put models, optimizers and random generators into the state before the step.

    Parameters take the dtype they were saved in, whatever dtype the builder gave them.
    """
    _check_names(names, saved)
    for key, x in names.tensors():
        if key in saved:
            x.data = torch.empty_like(x, dtype=saved.torch(key).dtype).copy_(saved.torch(key))
            gradient = f"gradient/{key}"
            x.grad = saved.torch(gradient).to(x.device) if gradient in saved else None
    if names.optimizers:
        _load_optimizers(names, tape, saved)
    in_eval = {ModulePlace(number, path) for number, path in tape["in_eval"]}
    for model in names.models:
        for module in model.modules():
            module.training = names.place_of(module) not in in_eval
    _generators(tape["generators"], saved).restore()


def _check_names(names: StateNames, saved: TensorFile) -> None:
    built_shapes = {key: tuple(x.shape) for key, x in names.tensors() if key.startswith("model")}
    saved_shapes = {key: saved.entry(key).shape for key in saved if key.startswith("model")}
    missing = [key for key in saved_shapes if key not in built_shapes]
    unexpected = [key for key in built_shapes if key not in saved_shapes]
    if missing or unexpected:
        why = [f"it lacks {_join_names(missing)}"] if missing else []
        why += [f"it has {_join_names(unexpected)}, which the step does not have"] if unexpected else []
        raise ReplayError.explain(
            "The model that was built is not the model of the step.",
            why=f"{'; '.join(why)}.",
            fix="build it with the settings of the training.",
        )
    for key, shape in saved_shapes.items():
        if built_shapes[key] != shape:
            raise ReplayError.explain(
                f"'{_without_prefix(key)}' has the shape {list(built_shapes[key])}, but was saved as {list(shape)}.",
                why="the model that was built is not the model of the step.",
                fix="build it with the settings of the training.",
            )


def _load_optimizers(names: StateNames, tape: SavedTape, saved: TensorFile) -> None:
    kinds = [type(optimizer).__name__ for optimizer in names.optimizers]
    if kinds != tape["optimizers"]:
        raise ReplayError.explain(
            f"The builder returns {', '.join(kinds)}, but the step was made with {', '.join(tape['optimizers'])}.",
            why="the state of an optimizer fits no other class.",
            fix="return the same optimizers, or only the model: then the step ends after backward.",
        )
    for number, optimizer in enumerate(names.optimizers):
        parameters = parameters_of(optimizer)
        optimizer.state.clear()
        prefix = optimizer_prefix(number)
        values = {key: saved.torch(key) for key in saved if key.startswith(prefix)}
        for name, value in {**values, **_with_prefix(tape["optimizer_values"], prefix)}.items():
            place, key = name.removeprefix(prefix).split("/", 1)
            if int(place) >= len(parameters):
                raise ReplayError.explain(
                    f"The {type(optimizer).__name__} that was built has {plural(len(parameters), 'parameter')}.",
                    why=f"state was saved for a parameter at place {place}.",
                    fix="give it the same parameters in the same groups.",
                )
            parameter = parameters[int(place)]
            if key != "parameter":
                optimizer.state[parameter][key] = _on_device_of(parameter, key, value)


def _on_device_of(parameter: Tensor, key: str, value: Any) -> Any:
    """Move state to the device of its parameter; step counters stay on the CPU."""
    return value.to(parameter.device) if isinstance(value, Tensor) and key != "step" else value


def _with_prefix(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key.startswith(prefix)}


def _generators(generators: SavedGenerators, saved: TensorFile) -> Generators:
    devices = [key for key in saved if key.startswith("generator/device")]
    kind, *rest = generators["numpy"]
    version, gauss = generators["python"]
    return Generators(
        saved.torch("generator/torch"),
        tuple(saved.torch(key) for key in sorted(devices)),
        (kind, saved["generator/numpy"].astype("uint32"), *rest),
        (version, tuple(saved["generator/python"].tolist()), gauss),
    )


def _rebuild_module(entry: SavedModel, prefix: str, saved: TensorFile) -> nn.Module:
    """Make a torch.nn module without parameters from its attributes."""
    kind = getattr(torch.nn, entry["class"], None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ReplayError.explain(f"torch.nn has no '{entry['class']}'.", why="the saved step calls it.")
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    vars(module).update(entry["attributes"] or {})
    for name in entry["buffers"]:
        key = prefix + name
        module.register_buffer(name, saved.torch(key) if key in saved else None)
    return module


def _without_prefix(key: str) -> str:
    return key.removeprefix("model/")


def _join_names(keys: Iterable[str]) -> str:
    return join_names([f"'{_without_prefix(key)}'" for key in keys], at_most=_MAX_NAMED)
