"""Overrides of single ops of a site, such as `"blocks.1.attn:softmax" = "fp32"`."""

from __future__ import annotations

import fnmatch
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.compute.computation import Computation
from roundoff.precision.compute.torch_ops import EXACT, Function, canonical_name, is_op_name, known_op_names, op_name
from roundoff.precision.recipe.site_formats import names_an_op, no_such_site, site_of
from roundoff.runs.records.event import MODEL


class OpOverride(NamedTuple):
    """An override of ops: the key as the user wrote it, and its parts."""

    key: str
    fmt: str
    site: str
    op: str

    @property
    def is_pattern(self) -> bool:
        """Whether it can match several ops; patterns do not match ops that only move values."""
        return any(letter in self.op for letter in "*?[")

    def covers(self, function: Function, name: str) -> bool:
        """Whether it matches this function."""
        if self.is_pattern:
            return function not in EXACT and fnmatch.fnmatchcase(name, self.op)
        return name == self.op


class OpOverrides:
    """The overrides of ops of one model, for a mode that looks up every call.

    A call belongs to the innermost site whose forward makes it. After the first forward there is a warning about
    overrides that matched no call.
    """

    def __init__(self, model: nn.Module, overrides: Mapping[str, str]) -> None:
        self._sites = _sites(model)
        self._overrides = op_overrides(model, overrides)
        self._current = _CurrentSite()
        self._called: dict[str, set[str]] | None = {}
        """What each site called in the first forward; None afterwards."""

    def __bool__(self) -> bool:
        return bool(self._overrides)

    def follow(self, computation: Computation, *, hand_on: Callable[[Any], Any] = lambda values: values) -> None:
        """Track which site is running; the inputs and outputs of each site are replaced by `hand_on(values)`."""
        for site, module in self._sites.items():
            ops = _SiteOps(site, [each for each in self._overrides if fnmatch.fnmatchcase(site, each.site)])
            leave = partial(self._leave_model, hand_on) if site == MODEL else hand_on
            computation.bracket(module, inputs=hand_on, around=partial(self._in_site, ops), outputs=leave)

    def format_of(self, function: Function) -> str | None:
        """Return the format of this call by the running site, or None if no override matches."""
        site = self._current.ops
        if site is None:
            return None
        if self._called is not None:
            self._called.setdefault(site.name, set()).add(op_name(function))
        return site.format_of(function)

    @contextmanager
    def _in_site(self, ops: _SiteOps) -> Iterator[None]:
        before, self._current.ops = self._current.ops, ops
        try:
            yield
        finally:
            self._current.ops = before

    def _leave_model(self, hand_on: Callable[[Any], Any], values: Any) -> Any:
        called, self._called = self._called, None
        for override in self._overrides if called is not None else ():
            self._warn_if_unused(override, called or {})
        return hand_on(values)

    def _warn_if_unused(self, override: OpOverride, called: dict[str, set[str]]) -> None:
        sites = [site for site in self._sites if fnmatch.fnmatchcase(site, override.site)]
        names = sorted(set().union(*(called.get(site, set()) for site in sites)))
        if not any(fnmatch.fnmatchcase(name, override.op) for name in names):
            computing = sorted(called.get(sites[0], set()) - {op_name(function) for function in EXACT})
            warnings.warn(
                f'The override "{override.key}" = "{override.fmt}" has no effect: the first forward made no such call. '
                f"{sites[0]} calls: {', '.join(computing) or 'nothing'}.",
                stacklevel=2,
            )


class _SiteOps:
    """The overrides that apply to the ops of one site."""

    def __init__(self, name: str, overrides: list[OpOverride]) -> None:
        self.name = name
        self._overrides = overrides
        self._known: dict[Function, str | None] = {}

    def format_of(self, function: Function) -> str | None:
        if function not in self._known:
            name = op_name(function)
            formats = [each.fmt for each in self._overrides if each.covers(function, name)]
            self._known[function] = formats[-1] if formats else None
        return self._known[function]


class _CurrentSite(threading.local):
    ops: _SiteOps | None = None


def op_overrides(model: nn.Module, overrides: Mapping[str, str]) -> list[OpOverride]:
    """Return the overrides of ops.

    Raises:
        RecipeError: one of them matches no site of the model, or no torch function.
    """
    found = []
    for key, fmt in overrides.items():
        if names_an_op(key):
            site, _, op = key.rpartition(":")
            override = OpOverride(key, fmt, site, op)
            if not override.is_pattern:
                override = override._replace(op=canonical_name(op))
            _check(override, model)
            found.append(override)
    return found


def _check(override: OpOverride, model: nn.Module) -> None:
    sites = _sites(model)
    if not any(fnmatch.fnmatchcase(site, override.site) for site in sites):
        if override.site == type(model).__name__ or ("." not in override.site and not _is_known(override)):
            raise _recorded_site(override, model)
        raise no_such_site(override.key, override.fmt, [*sites], model)
    if _is_known(override):
        return
    raise RecipeError.explain(
        f'The override "{override.key}" = "{override.fmt}" names an unknown op.',
        why=f"torch has no function '{override.op}'.",
        fix="name a function that the site's code calls: 'blocks.1.attn:softmax', 'head:linear', 'blocks.1:add'.",
    )


def _is_known(override: OpOverride) -> bool:
    return bool(fnmatch.filter(known_op_names(), override.op)) if override.is_pattern else is_op_name(override.op)


def _recorded_site(override: OpOverride, model: nn.Module) -> RecipeError:
    """Return the error for `Critic:head`, which is not an op of a site but may be a site of another model `Critic`."""
    path = f'"{override.op}"' if override.op else "the names of its modules"
    return RecipeError.explain(
        f'The override "{override.key}" = "{override.fmt}" matches neither a site of {type(model).__name__} nor an op '
        "of one.",
        why=f"a key is a site, or a site and a torch function, as in 'blocks.1.attn:softmax'; "
        f"'{override.key}' is what a recording calls a site of another model, {override.site}.",
        fix=f"a recipe applies to one model: use {path} in the overrides of apply_recipe for {override.site}.",
    )


def _sites(model: nn.Module) -> dict[str, nn.Module]:
    return {site_of(name) or MODEL: module for name, module in model.named_modules()}
