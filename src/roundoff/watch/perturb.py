"""Moves parameters by a rounding, to see how far a training goes by rounding alone."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from roundoff.record.torch_private import local_tensor


def perturb_(modules: Iterable[nn.Module]) -> None:
    """Move every number of every parameter by about one unit in the last place, up or down by chance.

    Chance is a generator of its own, so that the training's goes on as it was.
    """
    seen: set[int] = set()
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters(recurse=False):
                if id(parameter) not in seen and parameter.is_floating_point():
                    seen.add(id(parameter))
                    _move_(parameter)


def _move_(parameter: Tensor) -> None:
    local = local_tensor(parameter)
    values = (parameter if local is None else local).data
    generator = torch.Generator().manual_seed(values.numel())
    signs = torch.randint(0, 2, values.shape, generator=generator) * 2 - 1
    values.mul_(1 + signs.to(device=values.device, dtype=values.dtype) * torch.finfo(values.dtype).eps)
