"""Follows averages of the weights through the first steps: copies that are written to, and how far they move."""

from __future__ import annotations

import gc
from weakref import ref

import torch
from torch import Tensor, nn

from roundoff.kernels.compiled import widest_float
from roundoff.kernels.host_copies import Reading
from roundoff.record.loop.sites import Sites
from roundoff.record.structure import parameters_of
from roundoff.replay.state import Training
from roundoff.runs import AveragesProbe, WeightCopy
from roundoff.torch_private import has_no_memory, storage_of

FIRST_STEP, LAST_STEP = 4, 19
"""Copies are searched for after the first of these steps, and compared after the last."""
_MAX_ELEMENTS = 2**22
_MAX_COPIES = 16
_MAX_DISTANCE = 0.5
"""In units of the weight's norm: a tensor farther away is not a copy."""
_NARROW = (torch.bfloat16, torch.float16)
_FORMATS = (*_NARROW, torch.float32, torch.float64)
"""A copy may have another one than the weight."""


class WeightAverages:
    """Follows one trained weight: which other objects hold it or a copy of it, and whether they change it."""

    def __init__(self, training: Training, sites: Sites) -> None:
        self._training = training
        self._sites = sites
        self._weight: ref[Tensor] | None = None
        self._start: Tensor | None = None
        self._after: tuple[int, Tensor] | None = None
        self._copies: list[tuple[ref[Tensor], Tensor, int]] = []
        self._scales: list[float] = []

    def step_begins(self, step: int) -> None:
        """Check whether the weight was only scaled since the optimizer wrote it, as weight decay by hand does."""
        weight, after = self._followed_weight(), self._after
        if weight is None or after is None or not FIRST_STEP < step <= LAST_STEP or weight._version == after[0]:
            return
        if torch.equal(weight.detach(), after[1]):
            return  # clamped within its limits, or swapped out and back by a replay
        wide = widest_float(weight.device)
        now, left = weight.detach().to(wide), after[1].to(wide)
        scale = float((now * left).sum() / left.square().sum())
        if float((now - scale * left).norm()) <= 1e-5 * float(left.norm()):
            self._scales.append(scale)

    def step_ended(self, step: int) -> Reading[AveragesProbe | None]:
        """Keep the weight as the optimizer left it; after the last step, return what the copies did."""
        if step == FIRST_STEP:
            yield from self._begin()
        weight = self._followed_weight()
        if weight is not None and FIRST_STEP <= step < LAST_STEP:
            self._after = (weight._version, weight.detach().clone())
            return None
        found = None
        if weight is not None and step == LAST_STEP:
            found = yield from self._describe(weight, step)
        if step >= LAST_STEP:
            self.drop()
        return found

    def drop(self) -> None:
        """Let go of what was kept."""
        self._weight = self._start = self._after = None
        self._copies = []

    def _followed_weight(self) -> Tensor | None:
        """Return the weight, unless the script has dropped it."""
        return None if self._weight is None else self._weight()

    def _begin(self) -> Reading[None]:
        held = [p for one in self._training.optimizers for p in parameters_of(one)]
        wanted = [p for p in held if p.requires_grad and p.dim() >= 2 and 1 < p.numel() <= _MAX_ELEMENTS]
        wanted = [p for p in wanted if type(p) is nn.Parameter and not has_no_memory(p)]
        weight = next((p for p in wanted if self._sites.of_parameter(p)[1] is not None), None)
        if weight is None:
            return
        self._weight, self._start = ref(weight), weight.detach().clone()
        found = [x for x in gc.get_objects() if type(x) in (Tensor, nn.Parameter) and _is_like(x, weight)]
        distances = [(x.detach().to(weight.dtype) - weight.detach()).norm() for x in found]
        norm, *apart = map(float, (yield [weight.detach().norm(), *distances]))
        near = [x for x, distance in zip(found, apart, strict=True) if distance <= _MAX_DISTANCE * norm]
        self._copies = [(ref(x), x.detach().clone(), x._version) for x in near[:_MAX_COPIES]]

    def _describe(self, weight: Tensor, step: int) -> Reading[AveragesProbe | None]:
        assert self._start is not None
        written: list[tuple[int, Tensor, Tensor]] = []
        for reference, before, version in self._copies:
            x = reference()
            # An average is written in every step; the watch's own snapshots are written less often and do not count.
            if x is not None and x.shape == before.shape and x._version - version >= LAST_STEP - FIRST_STEP:
                written.append((x._version - version, x.detach(), before))
        distances = [(x - before).norm() for _, x, before in written]
        still = [_still_share(x, before, weight.detach()) for _, x, before in written if x.dtype in _NARROW]
        moved, *found = map(float, (yield [(weight.detach() - self._start).norm(), *distances, *still]))
        shares = iter(found[len(written) :])
        copies = [
            WeightCopy(
                num_writes=num,
                moved=distance,
                dtype=str(x.dtype).removeprefix("torch."),
                still_share=next(shares) if x.dtype in _NARROW else None,
            )
            for (num, x, _), distance in zip(written, found, strict=False)
        ]
        if not copies and not self._scales:
            return None
        return AveragesProbe(
            step=step,
            parameter=self._sites.of_parameter(weight)[1],
            moved=moved,
            copies=tuple(copies),
            scales=tuple(self._scales),
            num_holders=_num_holders(weight, self._training),
        )


def _is_like(x: Tensor, weight: Tensor) -> bool:
    if has_no_memory(x) or x.is_inference() or x.shape != weight.shape:
        return False
    alike = x.dtype == weight.dtype or (x.dtype in _FORMATS and weight.dtype in _FORMATS)
    return alike and x.device == weight.device and storage_of(x) != storage_of(weight)


def _still_share(x: Tensor, before: Tensor, weight: Tensor) -> Tensor:
    """Return the share of numbers as they were before, of those at least two numbers of the format from the weight."""
    apart = (x.float() - weight.float()).abs() > 2 * torch.finfo(x.dtype).eps * x.float().abs()
    return (apart & (x == before)).sum() / apart.sum().clamp(min=1)


def _num_holders(weight: Tensor, training: Training) -> int:
    """Count what shares the memory of the weight: tensors of a stored state dict, shallow copies of its model."""
    known = {id(module) for module in training.modules()}
    memory = storage_of(weight)
    count = 0
    for x in gc.get_objects():
        if x is weight or not issubclass(type(x), (Tensor, nn.Module)):
            continue
        if isinstance(x, nn.Module):
            count += id(x) not in known and any(p is weight for p in vars(x).get("_parameters", {}).values())
            count += id(x) not in known and _shares_children(x, training)
        elif type(x) in (Tensor, nn.Parameter) and not has_no_memory(x) and x.shape == weight.shape:
            count += storage_of(x) == memory
    return count


def _shares_children(module: nn.Module, training: Training) -> bool:
    children = vars(module).get("_modules")
    return bool(children) and any(vars(model).get("_modules") is children for model in training.models)
