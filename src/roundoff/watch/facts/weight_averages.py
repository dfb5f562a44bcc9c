"""Follows averages of the weights through the first steps: copies that are written to, and how far they move."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from roundoff.record.loop.sites import Sites
from roundoff.record.torch_private import has_no_memory
from roundoff.replay.state import Training, parameters_of
from roundoff.runs import JsonValue

FIRST_STEP, LAST_STEP = 4, 19
"""Copies are searched for after the first of these steps, and compared after the last."""
_MAX_ELEMENTS = 2**22
_MAX_COPIES = 16
_MAX_DISTANCE = 0.5
"""In units of the weight's norm: a tensor farther away is not a copy."""


class WeightAverages:
    """Follows one trained weight: which other objects hold it or a copy of it, and whether they change it."""

    def __init__(self, training: Training, sites: Sites) -> None:
        self._training = training
        self._sites = sites
        self._weight: Tensor | None = None
        self._start: Tensor | None = None
        self._after: tuple[int, Tensor] | None = None
        self._copies: list[tuple[ref[Tensor], Tensor, int]] = []
        self._scales: list[float] = []

    def step_begins(self, step: int) -> None:
        """Check whether the weight was only scaled since the optimizer wrote it, as weight decay by hand does."""
        weight, after = self._weight, self._after
        if weight is None or after is None or not FIRST_STEP < step <= LAST_STEP or weight._version == after[0]:
            return
        if torch.equal(weight.detach(), after[1]):
            return  # clamped within its limits, or swapped out and back by a replay
        scale = float((weight.detach().double() * after[1].double()).sum() / after[1].double().square().sum())
        rest = weight.detach().double() - scale * after[1].double()
        if float(rest.norm()) <= 1e-5 * float(after[1].double().norm()):
            self._scales.append(scale)

    def step_ended(self, step: int) -> dict[str, JsonValue] | None:
        """Keep the weight as the optimizer left it; after the last step, return what the copies did."""
        if step == FIRST_STEP:
            self._begin()
        weight = self._weight
        if weight is None or not FIRST_STEP <= step <= LAST_STEP:
            return None
        if step < LAST_STEP:
            self._after = (weight._version, weight.detach().clone())
            return None
        found = self._describe(weight)
        self._weight = self._start = self._after = None
        self._copies = []
        return found

    def _begin(self) -> None:
        held = [p for one in self._training.optimizers for p in parameters_of(one)]
        wanted = [p for p in held if p.requires_grad and p.dim() >= 2 and 1 < p.numel() <= _MAX_ELEMENTS]
        wanted = [p for p in wanted if type(p) is nn.Parameter and not has_no_memory(p)]
        weight = next((p for p in wanted if self._sites.of_parameter(p)[1] is not None), None)
        if weight is None:
            return
        self._weight, self._start = weight, weight.detach().clone()
        norm = float(weight.detach().norm())
        for x in gc.get_objects():
            if type(x) not in (Tensor, nn.Parameter) or not _is_like(x, weight) or len(self._copies) >= _MAX_COPIES:
                continue
            if float((x.detach() - weight.detach()).norm()) <= _MAX_DISTANCE * norm:
                self._copies.append((ref(x), x.detach().clone(), x._version))

    def _describe(self, weight: Tensor) -> dict[str, JsonValue] | None:
        assert self._start is not None
        moved = float((weight.detach() - self._start).norm())
        copies: list[JsonValue] = []
        for reference, before, version in self._copies:
            x = reference()
            # An average is written in every step; the watch's own snapshots are written less often and do not count.
            if x is not None and x.shape == before.shape and x._version - version >= LAST_STEP - FIRST_STEP:
                copies.append({"num_writes": x._version - version, "moved": float((x.detach() - before).norm())})
        scales: list[JsonValue] = [*self._scales]
        if not copies and not scales:
            return None
        return {
            "probe": "averages", "parameter": self._sites.of_parameter(weight)[1], "moved": moved, "copies": copies,
            "scales": scales, "num_holders": _num_holders(weight, self._training),
        }  # fmt: skip


def _is_like(x: Tensor, weight: Tensor) -> bool:
    same = x.shape == weight.shape and x.dtype == weight.dtype and x.device == weight.device and not x.is_inference()
    return same and not has_no_memory(x) and x.untyped_storage()._cdata != weight.untyped_storage()._cdata


def _num_holders(weight: Tensor, training: Training) -> int:
    """Count what shares the memory of the weight: tensors of a stored state dict, shallow copies of its model."""
    known = {id(module) for module in training.modules()}
    memory: Any = weight.untyped_storage()._cdata
    count = 0
    for x in gc.get_objects():
        if x is weight or not issubclass(type(x), (Tensor, nn.Module)):
            continue
        if isinstance(x, nn.Module):
            count += id(x) not in known and any(p is weight for p in vars(x).get("_parameters", {}).values())
            count += id(x) not in known and _shares_children(x, training)
        elif type(x) in (Tensor, nn.Parameter) and x.shape == weight.shape and not has_no_memory(x):
            count += x.untyped_storage()._cdata == memory
    return count


def _shares_children(module: nn.Module, training: Training) -> bool:
    children = vars(module).get("_modules")
    return bool(children) and any(vars(model).get("_modules") is children for model in training.models)
