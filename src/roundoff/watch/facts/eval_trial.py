"""Tries whether a trained model does better in its evaluation on inputs prepared as in training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal
from weakref import ref

import torch
from torch import Tensor, nn

from roundoff.runs import EvalTrialProbe

_MAX_SAMPLES, _MIN_SAMPLES = 512, 40
_MAX_BYTES = 16 * 2**20
_MIN_GAP = 0.15
"""How much smaller the share of right choices must be in the evaluation than on training samples, to try anything."""


class EvalTrial:
    """Keeps inputs and class indices of the last evaluation of a model."""

    def __init__(self) -> None:
        self._model: ref[nn.Module] | None = None
        self._step = -1
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._num_samples = self._num_bytes = 0

    def add(self, model: nn.Module, x: Tensor, target: Tensor, step: int) -> None:
        """Keep a batch of the evaluation, as long as there is room; those of another one are dropped."""
        if step != self._step or self._model is None or self._model() is not model:
            self._model, self._step, self._pairs = ref(model), step, []
            self._num_samples = self._num_bytes = 0
        size = x.numel() * x.element_size()
        if self._num_samples < _MAX_SAMPLES and self._num_bytes + size <= _MAX_BYTES:
            self._pairs.append((x.detach().clone(), target.detach().flatten().clone().long()))
            self._num_samples += len(x)
            self._num_bytes += size

    def compare(self, trained: tuple[Tensor, Tensor] | None, step: int) -> EvalTrialProbe | None:
        """Say how many choices are right on `trained` samples, in the evaluation, and there after the best change."""
        model = None if self._model is None else self._model()
        if model is None or trained is None or self._num_samples < _MIN_SAMPLES:
            return None
        x, target = (torch.cat(list(parts)) for parts in zip(*self._pairs, strict=True))
        given, wanted = trained
        is_alike = given.is_floating_point() and given.shape[1:] == x.shape[1:] and not wanted.is_floating_point()
        if not is_alike or len(given) < _MIN_SAMPLES:
            return None
        with torch.no_grad():
            model = copy.deepcopy(model).eval()
            known, share = _share(model, given, wanted.flatten().long()), _share(model, x, target)
            if known is None or share is None or share > known - _MIN_GAP:
                return None
            tried = {name: _share(model, change(x, given), target) or 0.0 for name, change in _CHANGES.items()}
        change = max(tried, key=lambda name: tried[name])
        return EvalTrialProbe(
            step=step, num_samples=len(x), train_share=known, share=share, change=change, changed_share=tried[change]
        )


def _share(model: nn.Module, x: Tensor, target: Tensor) -> float | None:
    """Return which part of the choices of a model is right."""
    scores = model(x)
    if not isinstance(scores, Tensor) or scores.dim() != 2 or scores.shape[1] < 2 or len(scores) != len(target):
        return None
    return float((scores.argmax(1) == target).double().mean())


def _with_statistics(x: Tensor, given: Tensor) -> Tensor:
    """Give every feature, or channel, of `x` the mean and the deviation that it has in `given`."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean, std = x.mean(axes, keepdim=True), x.std(axes, keepdim=True)
    return (x - mean) / std.clamp_min(1e-8) * given.std(axes, keepdim=True) + given.mean(axes, keepdim=True)


def _with_reversed_channels(x: Tensor, given: Tensor) -> Tensor:
    return x.flip(1) if x.dim() == 4 and x.shape[1] == 3 else x


_CHANGES: dict[Literal["statistics", "channels"], Callable[[Tensor, Tensor], Tensor]] = {
    "statistics": _with_statistics,
    "channels": _with_reversed_channels,
}
