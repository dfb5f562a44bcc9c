"""Names for the parts of a model: sites for modules, names for parameters."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, cast

from torch import Tensor, is_grad_enabled, nn
from torch.nn.parameter import is_lazy

from roundoff.record.identity import IdentityDict
from roundoff.runs.records.event import LOOP as LOOP
from roundoff.runs.records.event import MODEL as MODEL
from roundoff.torch_private import WeakIdKeyDictionary, hidden_from_modes, is_transformed

_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


MAX_REMADE = 4
"""This many different ones at one site are enough to know."""
_MAX_REMADE_LOOKS = 256


class Sites:
    """Gives every module a site and every parameter a name when its model is first used.

    The first model that owns parameters has bare names (`blocks.3.mlp`); every further one, and modules without
    parameters such as a criterion, are prefixed with their class (`CrossEntropyLoss:`). Wrappers are transparent.
    """

    def __init__(self) -> None:
        self.names: list[str] = [LOOP]
        self._codes: dict[str, int] = {LOOP: 0}
        self._modules: IdentityDict[nn.Module, int] = IdentityDict()
        self._parameters = WeakIdKeyDictionary()
        self._parameter_sites = WeakIdKeyDictionary()
        self._models: IdentityDict[nn.Module, str] = IdentityDict()
        self._adopted: IdentityDict[nn.Module, str] = IdentityDict()
        self._first_is_taken = False
        self.remade: dict[str, set[float]] = {}
        """Layers that modules make on the fly and drop again: for each site, the sums of their weights."""
        self._num_remade_looks = 0

    @property
    def models(self) -> list[nn.Module]:
        """The outermost modules used so far that are still alive."""
        return list(self._models)

    def parameters(self) -> Iterator[Tensor]:
        """Yield every parameter that has a name and a value, once."""
        seen: set[int] = set()
        for model in (*self._models, *self._adopted):
            for parameter in model.parameters():
                if id(parameter) in seen or parameter not in self._parameters:
                    continue
                if not is_lazy(parameter) and not is_transformed(parameter):
                    seen.add(id(parameter))
                    yield parameter

    def code(self, name: str) -> int:
        """Return the number of a site; a new site gets the next number."""
        known = self._codes.get(name)
        if known is None:
            known = self._codes[name] = len(self.names)
            self.names.append(name)
        return known

    def of_module(self, module: nn.Module, parent: int | None) -> int:
        """Return the site of a module that is being called, from inside `parent` or (None) from the loop."""
        known = self._modules.get(module)
        if known is not None:
            return known
        if parent is None:
            self.add_model(_outermost_owner(module))
            return self._modules[module]
        if next(module.parameters(), None) is not None:
            self.refresh()  # it may have taken the place of another layer
        known = self._modules.get(module)
        return self._adopt(module, parent) if known is None else known

    def add_model(self, model: nn.Module) -> None:
        """Name every module and parameter of a model."""
        if model in self._models:
            return
        inner = _unwrap(model)
        if inner is not model and inner in self._models:
            self._modules[model] = self._modules[inner]  # it was used before it was wrapped
            return
        bare = not self._first_is_taken and next(model.parameters(), None) is not None
        self._first_is_taken |= bare
        prefix = "" if bare else self._free_prefix(inner)
        self._models[model] = prefix
        self._name_tree(model, prefix, "", set())

    def of_parameter(self, parameter: Tensor) -> tuple[int, str | None]:
        """Return the site that owns a parameter and the parameter's name; `<loop>` and None if no model owns it."""
        name = self._parameters.get(parameter)
        if name is None:
            return 0, None
        return self._parameter_sites[parameter], name

    def add_stand_in(self, stand_in: Tensor, parameter: Tensor) -> None:
        """Give a tensor that an optimizer updates in place of a parameter the parameter's name."""
        name = self._parameters.get(parameter)
        if name is not None and stand_in not in self._parameters:
            self._parameters[stand_in] = name
            self._parameter_sites[stand_in] = self._parameter_sites[parameter]

    def refresh(self) -> None:
        """Name what was added to known models in the meantime: replaced layers, new heads."""
        for model, prefix in list(self._models.items()):
            self._name_tree(model, prefix, "", set())

    def _name_tree(self, module: nn.Module, prefix: str, path: str, seen: set[int]) -> None:
        if id(module) in seen:
            return  # a module in two places has the name of the first
        seen.add(id(module))
        wrapped = _WRAPPERS.get(_class_name(module))
        site = self.code(_site_name(prefix, path))
        self._modules.setdefault(module, site)
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter not in self._parameters:
                self._parameters[parameter] = prefix + (f"{path}.{name}" if path else name)
                self._parameter_sites[parameter] = site
        for name, child in module._modules.items():
            if child is not None:
                inner = path if name == wrapped else f"{path}.{name}" if path else name
                self._name_tree(child, prefix, inner, seen)

    def _free_prefix(self, model: nn.Module) -> str:
        name = type(model).__name__
        taken = set(self._models.values())
        number = 1
        prefix = f"{name}:"
        while prefix in taken:
            number += 1
            prefix = f"{name}#{number}:"
        return prefix

    def _adopt(self, module: nn.Module, parent: int) -> int:
        """Name a module that its caller does not own: made on the fly, or kept in a plain list."""
        stem = f"{self.names[parent]}.<{type(module).__name__}>" if parent else f"<{type(module).__name__}>"
        taken = set(self._adopted.values())
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f"{stem}#{number}"
        self._adopted[module] = name
        self._note_remade(module, name)
        self._name_tree(module, "", name, set())
        return self._modules[module]

    def _note_remade(self, module: nn.Module, name: str) -> None:
        """Note a layer whose weights no model owns: a container of owned layers has none of its own."""
        parameters = module.parameters() if is_grad_enabled() else ()
        weights = [p for p in parameters if _is_plain_weight(p) and p not in self._parameters]
        if not weights or self._num_remade_looks >= _MAX_REMADE_LOOKS:
            return
        self._num_remade_looks += 1
        sums = self.remade.setdefault(name, set())
        if len(sums) < MAX_REMADE:
            with hidden_from_modes():
                sums.add(float(weights[0].detach().sum()))


def _is_plain_weight(x: Tensor) -> bool:
    is_plain = type(x) is nn.Parameter and not is_lazy(x) and not is_transformed(x)
    return is_plain and x.requires_grad and x.dim() > 1 and x.is_cpu and not x.is_complex()


def named_places(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module of a model once, with its path; a wrapper has the path of what it wraps.

    >>> [path for path, _ in named_places(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())))]
    ['', '0', '1', '1.0']
    """
    seen: set[int] = set()

    def walk(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        yield path, module
        wrapped = _WRAPPERS.get(_class_name(module))
        for name, child in module._modules.items():
            if child is not None:
                yield from walk(child, path if name == wrapped else f"{path}.{name}" if path else name)

    return walk(model, "")


def _site_name(prefix: str, path: str) -> str:
    return f"{prefix}{path}" if prefix or path else MODEL


def _class_name(module: nn.Module) -> str:
    return next((c.__name__ for c in type(module).__mro__ if c.__name__ in _WRAPPERS), "")


def _unwrap(module: nn.Module) -> nn.Module:
    while (inner := _WRAPPERS.get(_class_name(module))) is not None:
        child = module._modules.get(inner)
        if child is None:
            break
        module = child
    return module


def _outermost_owner(module: nn.Module) -> nn.Module:
    """Find the model that a module called from the loop belongs to (`model.encoder(x)`); itself if there is none."""
    if next(module.parameters(), None) is None:
        return module
    passed = {id(module)}
    while (owner := _owner(module)) is not None and id(owner) not in passed:
        passed.add(id(owner))
        module = owner
    return module


def _owner(module: nn.Module) -> nn.Module | None:
    """Return a module that has `module` among its children; only the garbage collector knows them."""
    for children in gc.get_referrers(module):
        if not _has_child(children, module):
            continue
        for holder in gc.get_referrers(children):
            is_attributes = type(holder) is dict and holder.get("_modules") is children
            for owner in gc.get_referrers(holder) if is_attributes else [holder]:
                if issubclass(type(owner), nn.Module) and vars(owner).get("_modules") is children:
                    return cast(nn.Module, owner)
    return None


def _has_child(value: Any, module: nn.Module) -> bool:
    if not issubclass(type(value), dict):
        return False
    children = list(value.values())
    # type(), not isinstance: that would make lazy proxies among the values load what they stand for
    return any(child is module for child in children) and all(
        child is None or issubclass(type(child), nn.Module) for child in children
    )
