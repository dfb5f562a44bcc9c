"""The torch functions that a replayed forward calls, with operands and results, so that two plays can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.kernels.compiled import widest_float
from roundoff.record.loop.sites import LOOP, Sites
from roundoff.record.source_lines import Sources
from roundoff.replay.arguments import tensors_of
from roundoff.torch_private import FunctionMode, calls_of_modules, hidden_from_modes


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledFunction:
    """One call of a torch function."""

    name: str
    site: str
    source: str | None
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


class FunctionTrail(FunctionMode):
    """Keeps every call in its block that computes tensors; those inside another torch function belong to that one."""

    def __init__(self, sites: Sites, sources: Sources) -> None:
        super().__init__()
        self.calls: list[CalledFunction] = []
        self._sites = sites
        self._sources = sources

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Make the call, and keep it."""
        name = getattr(func, "__name__", "")
        with hidden_from_modes():
            operands = tuple(x.detach() for x in plain_tensors((args, kwargs or {})))
            if name.startswith("__i") or name.endswith("_"):
                operands = tuple(x.clone() for x in operands)  # the call may write into them
        result = func(*args, **(kwargs or {}))
        with hidden_from_modes():
            results = tuple(x.detach() for x in plain_tensors(result))
            if results:
                site, source = site_here(self._sites), line_here(self._sources)
                call = CalledFunction(name=name, site=site, source=source, operands=operands, results=results)
                self.calls.append(call)
        return result


def plain_tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments or results that hold their own numbers."""
    found: Iterable[Tensor] = tensors_of(values)
    return (x for x in found if type(x) in (Tensor, nn.Parameter) and x.layout is torch.strided and not x.is_complex())


def site_here(sites: Sites) -> str:
    """Return the site of the innermost module that is running."""
    module = next(calls_of_modules(), None)
    return LOOP if module is None else sites.names[sites.of_module(module, 0)]


def line_here(sources: Sources) -> str | None:
    """Return the line of the user's code that is running."""
    place = sources.here()
    return sources.lines[place] if place >= 0 else None


def differ(a: Tensor, b: Tensor) -> Tensor:
    """Say which numbers of two tensors of one shape differ by more than rounding."""
    a, b = (x.to(widest_float(x.device)) for x in (a, b))
    return (a - b).abs() > 1e-5 * (float(a.abs().max()) if a.numel() else 1.0) + 1e-30
