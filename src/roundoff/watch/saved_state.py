"""The state before a saved step, put into models and optimizers that were built anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.errors import ReplayError
from roundoff.runs import TensorFile
from roundoff.watch.builder import Built
from roundoff.watch.generators import Generators
from roundoff.watch.state import parameters_of
from roundoff.watch.state_names import Place, StateNames, model_prefix, optimizer_prefix

_MOST_NAMED = 5


def models_of(built: Built, tape: Mapping[str, Any], saved: TensorFile) -> list[nn.Module]:
    """Return the models of the step in their order: those that were built, and losses of torch.nn made again."""
    described: Sequence[Mapping[str, Any]] = tape["models"]
    if len(built.models) == len(described):
        return list(built.models)
    wanted = [entry["class"] for entry in described if entry["attributes"] is None]
    if len(built.models) != len(wanted):
        raise ReplayError.explain(
            f"The builder returns {_count(len(built.models), 'model')}, and the step has {len(wanted)}.",
            why=f"its loop calls {', '.join(wanted)}.",
            fix=f"return a list of them, in this order: [{', '.join(wanted)}].",
        )
    built_ones = iter(built.models)
    return [
        next(built_ones) if entry["attributes"] is None else _made_again(entry, model_prefix(number), saved)
        for number, entry in enumerate(described)
    ]


def fit_state(names: StateNames, tape: Mapping[str, Any], saved: TensorFile) -> None:
    """Give models, optimizers and random generators the values that they had before the step.

    Parameters take the dtype they were saved in, whatever the builder gave them.
    """
    _check_names(names, saved)
    for key, x in names.tensors():
        if key in saved:
            x.data = torch.empty_like(x, dtype=saved.torch(key).dtype).copy_(saved.torch(key))
            gradient = f"gradient/{key}"
            x.grad = saved.torch(gradient).to(x.device) if gradient in saved else None
    if names.optimizers:
        _fit_optimizers(names, tape, saved)
    in_eval = {Place(number, path) for number, path in tape["in_eval"]}
    for model in names.models:
        for module in model.modules():
            module.training = names.place_of(module) not in in_eval
    _generators(tape["generators"], saved).restore()


def _check_names(names: StateNames, saved: TensorFile) -> None:
    ours = {key: tuple(x.shape) for key, x in names.tensors() if key.startswith("model")}
    theirs = {key: saved.entry(key).shape for key in saved if key.startswith("model")}
    missing, unexpected = [k for k in theirs if k not in ours], [k for k in ours if k not in theirs]
    if missing or unexpected:
        told = [f"it lacks {_listed(missing)}"] if missing else []
        told += [f"it has {_listed(unexpected)}, which the step had not"] if unexpected else []
        raise ReplayError.explain(
            "The model that was built is not the one of the step.",
            why=f"{'; '.join(told)}.",
            fix="build it with the settings of the training.",
        )
    for key, shape in theirs.items():
        if ours[key] != shape:
            raise ReplayError.explain(
                f"'{_bare(key)}' has the shape {list(ours[key])}, and was saved as {list(shape)}.",
                why="the model that was built is not the one of the step.",
                fix="build it with the settings of the training.",
            )


def _fit_optimizers(names: StateNames, tape: Mapping[str, Any], saved: TensorFile) -> None:
    kinds = [type(optimizer).__name__ for optimizer in names.optimizers]
    if kinds != tape["optimizers"]:
        raise ReplayError.explain(
            f"The builder returns {', '.join(kinds)}, and the step was made with {', '.join(tape['optimizers'])}.",
            why="the state of an optimizer fits no other kind.",
            fix="return the same optimizers, or the model alone: then the step is run without its last part.",
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
                    f"The {type(optimizer).__name__} that was built moves {_count(len(parameters), 'parameter')}.",
                    why=f"state was saved for one more, at place {place}.",
                    fix="give it the same parameters in the same groups.",
                )
            parameter = parameters[int(place)]
            if key != "parameter":
                optimizer.state[parameter][key] = _near(parameter, key, value)


def _near(parameter: Tensor, key: str, value: Any) -> Any:
    """Put state beside its parameter; counters of steps stay on the CPU."""
    return value.to(parameter.device) if isinstance(value, Tensor) and key != "step" else value


def _with_prefix(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key.startswith(prefix)}


def _generators(told: Mapping[str, Any], saved: TensorFile) -> Generators:
    devices = [key for key in saved if key.startswith("generator/device")]
    kind, *rest = told["numpy"]
    version, gauss = told["python"]
    return Generators(
        saved.torch("generator/torch"),
        tuple(saved.torch(key) for key in sorted(devices)),
        (kind, saved["generator/numpy"].astype("uint32"), *rest),
        (version, tuple(saved["generator/python"].tolist()), gauss),
    )


def _made_again(entry: Mapping[str, Any], prefix: str, saved: TensorFile) -> nn.Module:
    """Make a part of torch.nn that has no parameters from its attributes."""
    kind = getattr(torch.nn, entry["class"], None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ReplayError.explain(f"torch.nn has no '{entry['class']}'.", why="the saved step calls one.")
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    vars(module).update(entry["attributes"])
    for name in entry["buffers"]:
        key = prefix + name
        module.register_buffer(name, saved.torch(key) if key in saved else None)
    return module


def _bare(key: str) -> str:
    return key.removeprefix("model/")


def _listed(keys: Iterable[str]) -> str:
    names = [f"'{_bare(key)}'" for key in keys]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
