"""Which ops of a forward draw random numbers, and where."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn

from roundoff.record.op_table import describe_op
from roundoff.record.sites import LOOP, Sites
from roundoff.record.source import Sources
from roundoff.record.torch_private import DispatchMode, push_mode, remove_mode
from roundoff.runs import JsonValue


@contextlib.contextmanager
def noting_random_ops(sites: Sites, sources: Sources) -> Iterator[list[dict[str, JsonValue]]]:
    """Give the list of random ops inside the block, as it grows: site, op and source of each."""
    mode = _RandomOps(sites, sources)
    push_mode(mode)
    try:
        yield mode.found
    finally:
        remove_mode(mode)


class _RandomOps(DispatchMode):
    def __init__(self, sites: Sites, sources: Sources) -> None:
        super().__init__()
        self.found: list[dict[str, JsonValue]] = []
        self._sites = sites
        self._sources = sources

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and not _draws_nothing(func, args, kwargs or {}):
            place = self._sources.here()
            source = self._sources.lines[place] if place >= 0 else None
            self.found.append({"site": self._site(), "op": describe_op(func).name, "source": source})
        return func(*args, **kwargs) if kwargs else func(*args)

    def _site(self) -> str:
        """Return the innermost module whose call is on the stack."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and frame.f_code.co_name in ("_call_impl", "_wrapped_call_impl"):
                return self._sites.names[self._sites.of_module(module, 0)]
            frame = frame.f_back
        return LOOP


def _draws_nothing(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Say whether an op that could draw random numbers does not: attention and dropout with probability 0."""
    arguments = func._schema.arguments
    names = [argument.name for argument in arguments]
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
    if given.get("train") is False or given.get("training") is False:
        return True
    return any(name in names and not given.get(name, 0.0) for name in ("dropout_p", "p"))
