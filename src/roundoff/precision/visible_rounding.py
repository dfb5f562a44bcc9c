"""Rounding as an op of torch, so that whoever watches a step sees where emulation makes an infinity."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from roundoff.formats import Format, format_named

# Calling the kernel costs a third of calling an op, so the op is for watched steps only. Private: without it, rounding
# stays right and unseen.
_num_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


class _Ops(NamedTuple):
    library: Any
    """Keeps the definitions alive."""
    round_: Callable[[Tensor, str], Tensor]
    rounded: Callable[[Tensor, str], Tensor]


def is_watched() -> bool:
    """Whether a mode sees every op of this thread."""
    return _num_dispatch_modes() > 0


def round_visibly(x: Tensor, fmt: Format) -> None:
    """Round in place, as the op `roundoff.round_`."""
    _FORMATS[fmt.name] = fmt
    _ops().round_(x, fmt.name)


def rounded_visibly(x: Tensor, fmt: Format) -> Tensor:
    """Return a rounded copy, as the op `roundoff.rounded`."""
    _FORMATS[fmt.name] = fmt
    return _ops().rounded(x, fmt.name)


_FORMATS: dict[str, Format] = {}
"""Formats that were used under their name; an op takes no objects."""


@functools.cache
def _ops() -> _Ops:
    library = torch.library.Library("roundoff", "FRAGMENT")
    library.define("round_(Tensor(a!) x, str format) -> Tensor(a!)")
    library.define("rounded(Tensor x, str format) -> Tensor")
    library.impl("round_", _round_, "CompositeExplicitAutograd")
    library.impl("rounded", _rounded, "CompositeExplicitAutograd")
    return _Ops(library, torch.ops.roundoff.round_.default, torch.ops.roundoff.rounded.default)


def _round_(x: Tensor, name: str) -> Tensor:
    return _format(name).rounded(x, rounding="nearest", key=0, overflow=None, out=x)


def _rounded(x: Tensor, name: str) -> Tensor:
    return _format(name).rounded(x, rounding="nearest", key=0, overflow=None, out=None)


def _format(name: str) -> Format:
    return _FORMATS.get(name) or format_named(name)
