"""Describes what a training is made of: parameters, modules, optimizers, and how they belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from roundoff.kernels import row as columns
from roundoff.kernels.host_copies import Reading, read_now
from roundoff.kernels.summaries import summarize
from roundoff.record.identity import IdentityDict
from roundoff.record.loop.sites import LOOP, Sites, named_places
from roundoff.runs import JsonValue, ModuleFacts, OptimizerFacts, ParameterFacts, RunWriter, Structure
from roundoff.torch_private import has_no_memory, storage_of

_MAX_SETTING_ITEMS = 8
"""Longer lists among the attributes of a module are no settings."""
_OWN = ("_parameters", "_buffers", "_modules")
_MAX_DEPTH = 3
_MAX_ITEMS = 1000
_MAX_WRITTEN = 8
"""A loop that makes new models all the time is not described again and again."""


def structure_of(
    models: Sequence[nn.Module],
    optimizers: Iterable[Optimizer],
    *,
    step: int,
    sites: Sites,
    reached: Iterable[Tensor],
    starts: dict[int, tuple[float, float, float]],
    resumed: set[int],
    stepped: Container[Optimizer],
    name_of: Callable[[Optimizer], str],
) -> Reading[Structure]:
    """Describe the training.

    Args:
        models: those of the training.
        optimizers: those that are known; only those that step or hold parameters of the models are described.
        step: the step that has ended.
        sites: the names of modules and parameters.
        reached: the leaves that backward reached.
        starts: mean, std and absmax of tensors before the first step, by id.
        resumed: the ids of optimizers that had state before their first step.
        stepped: the optimizers that have stepped.
        name_of: returns the name of an optimizer.
    """
    reached = list(reached)
    trained = {id(x) for x in reached} | {id(p) for model in models for p in model.parameters()}
    optimizers = [o for o in outermost_optimizers(optimizers) if o in stepped or _holds_any(o, trained)]
    modules = _distinct_modules(models)
    names = {id(optimizer): name_of(optimizer) for optimizer in optimizers}
    with torch.no_grad():
        parameters = [p for model in models for p in model.parameters()]
        of_optimizers = [p for optimizer in optimizers for p in parameters_of(optimizer)]
        questions = _questions([*parameters, *of_optimizers, *reached], modules)
    answers = {key: bool(answer) for key, answer in zip(questions, (yield list(questions.values())), strict=True)}
    with torch.no_grad():
        return Structure(
            step=step,
            parameters=tuple(_parameters(models, optimizers, names, sites, reached, starts, answers)),
            modules=tuple(_modules(modules, sites, answers)),
            optimizers=tuple(
                OptimizerFacts(
                    name=names[id(optimizer)],
                    groups=tuple(_group(group) for group in optimizer.param_groups),
                    has_state=id(optimizer) in resumed,
                    recipe=getattr(optimizer, "recipe_text", None),
                )
                for optimizer in optimizers
            ),
        )


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of an optimizer, group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def outermost_optimizers(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """Return one of the optimizers that share a state: the outermost wrapper of ours, any one of other libraries."""
    found = list(optimizers)
    inner = {id(getattr(optimizer, "inner", None)) for optimizer in found}
    chosen: dict[int, Optimizer] = {}
    for optimizer in found:
        if id(optimizer) not in inner:
            chosen.setdefault(id(optimizer.state), optimizer)
    return list(chosen.values())


def _distinct_modules(models: Iterable[nn.Module]) -> list[nn.Module]:
    return list({id(module): module for model in models for module in model.modules()}.values())


def _stand_ins(optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    """Return the pairs (parameter, tensor that is updated instead) of an optimizer with master weights of ours."""
    return getattr(optimizer, "stand_ins", [])


def _holds_any(optimizer: Optimizer, tensors: set[int]) -> bool:
    return any(id(p) in tensors for p in (*parameters_of(optimizer), *(p for p, _ in _stand_ins(optimizer))))


class OptimizerNames:
    """Names optimizers after their classes, numbered from the second of a class on, in the order of first use."""

    def __init__(self) -> None:
        self._names: IdentityDict[Optimizer, str] = IdentityDict()
        self._num_of_class: Counter[str] = Counter()

    def of(self, optimizer: Optimizer) -> str:
        """Return the name of an optimizer."""
        name = self._names.get(optimizer)
        if name is None:
            kind = type(optimizer).__name__
            self._num_of_class[kind] += 1
            number = self._num_of_class[kind]
            name = self._names[optimizer] = kind if number == 1 else f"{kind}#{number}"
        return name


class StructureWriter:
    """Describes a training into a run as its first step ends, and again when models, optimizers or groups were added.

    To be called where no mode of the user's sees it.
    """

    def __init__(self, writer: RunWriter, sites: Sites) -> None:
        self._writer = writer
        self._sites = sites
        self._optimizers: IdentityDict[Optimizer, OptimizerFacts] = IdentityDict()
        """Those that have stepped, as they were when they first did: a scheduler changes them before the step ends."""
        self._name_of = OptimizerNames().of
        self._num_parts = 0
        self._num_written = 0

    def stepping(self, optimizer: Optimizer) -> None:
        """Note that an optimizer steps."""
        if self._optimizers.get(optimizer) is None:
            groups = tuple(_group(group) for group in optimizer.param_groups)
            facts = OptimizerFacts(name=self._name_of(optimizer), groups=groups, has_state=bool(optimizer.state))
            self._optimizers[optimizer] = facts

    def step_ended(self, step: int, leaves: Iterable[Tensor]) -> None:
        """Describe the training, if there is something new; `leaves` are what backward reached."""
        models, optimizers = self._sites.models, list(self._optimizers)
        num_parts = len(models) + sum(len(optimizer.param_groups) for optimizer in optimizers)
        if not optimizers or num_parts <= self._num_parts or self._num_written >= _MAX_WRITTEN:
            return
        self._num_parts, self._num_written = num_parts, self._num_written + 1
        reading = structure_of(
            models,
            optimizers,
            step=step,
            sites=self._sites,
            reached=leaves,
            starts={},
            resumed=set(),
            stepped=self._optimizers,
            name_of=self._name_of,
        )
        found = read_now(reading)
        first = {facts.name: facts for optimizer in optimizers if (facts := self._optimizers.get(optimizer))}
        as_stepped = tuple(replace(first[facts.name], recipe=facts.recipe) for facts in found.optimizers)
        self._writer.write(replace(found, optimizers=as_stepped))


def start_values(tensors: Iterable[Tensor]) -> dict[int, tuple[float, float, float]]:
    """Return mean, std and absmax of each tensor, by id; one pass over their memory."""
    found: dict[int, tuple[float, float, float]] = {}
    for x in tensors:
        if _is_plain(x) and x.is_floating_point() and x.numel():
            row = summarize(x.detach())
            mean = float(row[columns.SUM]) / x.numel()
            variance = max(float(row[columns.SUM_SQUARES]) / x.numel() - mean * mean, 0.0)
            found[id(x)] = (mean, variance**0.5, max(abs(float(row[columns.MIN])), abs(float(row[columns.MAX]))))
    return found


def _parameters(
    models: Sequence[nn.Module],
    optimizers: list[Optimizer],
    names: dict[int, str],
    sites: Sites,
    reached: list[Tensor],
    starts: dict[int, tuple[float, float, float]],
    answers: dict[int, bool],
) -> Iterable[ParameterFacts]:
    holders: dict[int, list[str]] = {}
    stand_ins: dict[int, Tensor] = {}
    for optimizer in optimizers:
        for parameter, stand_in in _stand_ins(optimizer):
            stand_ins[id(stand_in)] = parameter
        for held in parameters_of(optimizer):
            owner = stand_ins.get(id(held), held)
            holders.setdefault(id(owner), []).append(names[id(optimizer)])
    is_reached = set(map(id, reached))
    memory: dict[tuple[int, int], str] = {}
    seen: set[int] = set()
    attributes = held_by_attributes(models)
    of_models = [p for model in models for p in model.parameters()]
    of_optimizers = [p for o in optimizers for p in parameters_of(o) if id(p) not in stand_ins]
    for parameter in (*of_models, *of_optimizers, *reached):
        if id(parameter) in seen or is_lazy(parameter):
            continue
        seen.add(id(parameter))
        site, name = sites.of_parameter(parameter)
        tied = memory.setdefault(_memory_of(parameter), name or LOOP) if parameter.numel() else name
        mean, std, absmax = starts.get(id(parameter), (None, None, None))
        num_distinct = _num_distinct_rows(parameter) if answers.get(id(parameter)) else None  # they nearly never repeat
        yield ParameterFacts(
            name=name,
            site=sites.names[site],
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            requires_grad=parameter.requires_grad,
            optimizers=tuple(holders.get(id(parameter), ())),
            has_gradient=parameter.grad is not None,
            is_reached=id(parameter) in is_reached,
            tied_to=tied if tied != name and name is not None else None,
            mean=mean,
            std=std,
            absmax=absmax,
            equal_rows=num_distinct == 1,
            num_distinct_rows=num_distinct,
            is_zero=absmax == 0.0,
            attribute=attributes.get(id(parameter)),
            is_sharded=any(placement.is_shard() for placement in getattr(parameter, "placements", ())),
        )


def _memory_of(x: Tensor) -> tuple[int, int]:
    try:
        return storage_of(x), int(x.storage_offset())
    except (NotImplementedError, RuntimeError):
        return id(x), 0


def _questions(parameters: Iterable[Tensor], modules: Iterable[nn.Module]) -> dict[int, Tensor]:
    """Return, by id, whether the first two rows of parameters are equal, and whether statistics are untouched."""
    questions = {id(x): _rows_repeat(x) for x in parameters}
    questions |= {id(module): _has_start_statistics(module) for module in modules}
    return {key: answer for key, answer in questions.items() if answer is not None}


def _rows_repeat(x: Tensor) -> Tensor | None:
    if is_lazy(x) or not _is_plain(x) or x.dim() < 2 or x.shape[0] < 2 or not x.numel():
        return None
    first, second = x.detach()[:2].flatten(1)
    if x.is_cpu and not torch.equal(first[:1], second[:1]):
        return None  # nearly always
    do_repeat: Tensor = (first == second).all()
    return do_repeat


def _num_distinct_rows(x: Tensor) -> int:
    rows = x.detach().flatten(1)
    return 1 if bool((rows == rows[:1]).all()) else len(torch.unique(rows, dim=0))


def _is_plain(x: Tensor) -> bool:
    """Return whether a tensor has memory that can be read as it is."""
    return type(x.data) in (Tensor, nn.Parameter) and not x.is_meta and not has_no_memory(x)


def _modules(modules: Iterable[nn.Module], sites: Sites, answers: dict[int, bool]) -> Iterable[ModuleFacts]:
    for module in modules:
        site = sites.names[sites.of_module(module, 0)]
        yield ModuleFacts(
            site=site,
            kind=type(module).__name__,
            training=module.training,
            settings=_settings(module),
            has_start_statistics=answers.get(id(module)),
        )


def _has_start_statistics(module: nn.Module) -> Tensor | None:
    buffers = dict(module.named_buffers(recurse=False))  # not getattr: a module may answer to any name, or raise
    mean, variance = buffers.get("running_mean"), buffers.get("running_var")
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor) or mean.is_meta or is_lazy(mean):
        return None
    return (mean == 0).all() & (variance == 1).all()


def _settings(module: nn.Module) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name == "training":
            continue
        if value is None or isinstance(value, (bool, int, float, str)):
            found[name] = value
        elif _is_short_list(value):
            found[name] = list(value)
    return found


def _is_short_list(value: Any) -> bool:
    is_list = isinstance(value, (list, tuple)) and len(value) <= _MAX_SETTING_ITEMS
    return is_list and all(isinstance(item, (bool, int, float, str)) for item in value)


def _group(group: dict[str, Any]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {"num_parameters": len(group["params"])}
    for key, value in group.items():
        if key == "params":
            continue
        if isinstance(value, Tensor):
            value = float(value) if value.numel() == 1 else None
        if value is None or isinstance(value, (bool, int, float, str)):
            found[key] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, float)) for item in value):
            found[key] = list(value)
    return found


def held_by_attributes(models: Iterable[nn.Module]) -> dict[int, str]:
    """Return, by id, the place of each tensor in a plain attribute, list or dict, which `parameters()` leaves out.

    >>> model = nn.Identity()
    >>> model.layers = [nn.Linear(2, 2)]
    >>> list(held_by_attributes([model]).values())
    ['layers[0].weight', 'layers[0].bias']
    """
    found: dict[int, str] = {}
    for model in models:
        owned = set(map(id, model.parameters())) | set(map(id, model.buffers()))
        for path, module in named_places(model):
            for name, value in vars(module).items():
                if name not in _OWN:
                    for place, x in _tensors_in(value, f"{path}.{name}" if path else name, _MAX_DEPTH):
                        if id(x) not in owned:
                            found.setdefault(id(x), place)
    return found


def _tensors_in(value: Any, place: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    # type(), not isinstance: that would make lazy proxies among the values load what they stand for
    if issubclass(type(value), Tensor):
        yield place, value
    elif issubclass(type(value), nn.Module):
        yield from ((f"{place}.{name}", x) for name, x in value.named_parameters())
    elif depth and issubclass(type(value), (list, tuple)) and len(value) <= _MAX_ITEMS:
        for index, item in enumerate(value):
            yield from _tensors_in(item, f"{place}[{index}]", depth - 1)
    elif depth and issubclass(type(value), dict) and len(value) <= _MAX_ITEMS:
        for key, item in value.items():
            yield from _tensors_in(item, f"{place}[{key!r}]", depth - 1)
