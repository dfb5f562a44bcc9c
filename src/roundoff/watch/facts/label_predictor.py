"""Tries whether the targets follow from the inputs at all, with a small model of our own on kept samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from roundoff.runs import PredictorProbe

_MAX_SAMPLES = 1024
_MAX_BYTES = 32 * 2**20
_MIN_SAMPLES = 96
_MAX_CLASSES = 100
_NUM_FEATURES = 512
"""Random ones of a nonlinear layer, next to the inputs themselves."""
_MAX_INPUTS = 2048
_NUM_BUCKETS = 512
_NUM_PERMUTATIONS = 20
_RIDGES = (1.0, 30.0, 1000.0)


class KeptPairs:
    """Keeps inputs and targets of the first steps, as copies in host memory."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._num_samples = self._num_bytes = 0

    def add(self, x: Tensor, target: Tensor) -> None:
        """Keep a batch that has one target per sample, as long as there is room."""
        if not (x.is_cpu and target.is_cpu) or x.dim() < 2 or not len(x) or target.numel() != len(x):
            return
        size = x.numel() * x.element_size()
        is_alike = not self._pairs or self._pairs[0][0].shape[1:] == x.shape[1:]
        if is_alike and self._num_samples < _MAX_SAMPLES and self._num_bytes + size <= _MAX_BYTES:
            self._pairs.append((x.detach().clone(), target.detach().reshape(-1).clone()))
            self._num_samples += len(x)
            self._num_bytes += size

    def together(self) -> tuple[Tensor, Tensor] | None:
        """Return all inputs that were kept, and their targets."""
        if not self._pairs:
            return None
        x, target = (torch.cat(list(parts)) for parts in zip(*self._pairs, strict=True))
        return x, target

    def try_predicting(self, step: int) -> PredictorProbe | None:
        """Say how well targets that were left out are predicted, and how well after they were shuffled.

        A ridge regression on the inputs and on random nonlinear features of them; of rows of ids, on how often each
        occurs and on the first and the last. Twenty shuffles show what chance gives.
        """
        if self._num_samples < _MIN_SAMPLES:
            return None
        x, target = (torch.cat(list(parts)) for parts in zip(*self._pairs, strict=True))
        wanted = _scores_wanted(target)
        if wanted is None:
            return None
        generator = torch.Generator().manual_seed(0)
        features = _of_ids(x) if not x.is_floating_point() else _of_numbers(x, generator)
        if features is None:
            return None
        order = torch.randperm(len(x), generator=generator)
        features, wanted = features[order], wanted[order]
        hats = _hats(features)
        shuffled = [
            _explained_variance(hats, wanted[torch.randperm(len(x), generator=generator)])
            for _ in range(_NUM_PERMUTATIONS)
        ]
        return PredictorProbe(
            step=step,
            num_samples=len(x),
            explained=_explained_variance(hats, wanted),
            explained_by_chance=max(shuffled),
        )


_MAX_MIX_NUMBERS = 2**22
_MAX_IDS = 4096
"""Longer rows of whole numbers are pictures or sound, not ids."""


def _scores_wanted(target: Tensor) -> Tensor | None:
    """Return what to predict, centred: one column per class, or the number itself."""
    if target.is_floating_point():
        columns = target.double().unsqueeze(1)
    else:
        classes, places = torch.unique(target, return_inverse=True)
        if not 1 < len(classes) <= _MAX_CLASSES:
            return None
        columns = torch.nn.functional.one_hot(places, len(classes)).double()
    columns = columns - columns.mean(0)
    return columns if bool(torch.isfinite(columns).all()) and float(columns.square().sum()) else None


def _of_numbers(x: Tensor, generator: torch.Generator) -> Tensor | None:
    flat = x.flatten(1).double()
    if not bool(torch.isfinite(flat).all()):
        return None
    if flat.shape[1] > _MAX_INPUTS:
        num_columns = max(1, _MAX_MIX_NUMBERS // flat.shape[1])  # all of it at once can take a gigabyte
        parts = [
            flat @ torch.randn(flat.shape[1], len(columns), generator=generator, dtype=torch.float64)
            for columns in torch.arange(_MAX_INPUTS).split(num_columns)
        ]
        flat = torch.cat(parts, dim=1) / math.sqrt(flat.shape[1])
    flat = _standardize(flat)
    weights = torch.randn(flat.shape[1], _NUM_FEATURES, generator=generator, dtype=torch.float64)
    bias = torch.randn(_NUM_FEATURES, generator=generator, dtype=torch.float64)
    hidden = torch.relu(flat @ weights / math.sqrt(flat.shape[1]) + bias)
    return torch.cat([flat, _standardize(hidden)], dim=1)


def _of_ids(x: Tensor) -> Tensor | None:
    if x.flatten(1).shape[1] > _MAX_IDS:
        return None
    rows = x.flatten(1).long()
    padding = rows[:, -1].mode().values
    is_real = rows != padding
    places = torch.arange(rows.shape[1])
    last = torch.where(is_real, places, -1).amax(1).clamp_min(0)
    counts = torch.zeros(len(rows), _NUM_BUCKETS, dtype=torch.float64)
    counts.scatter_add_(1, rows.remainder(_NUM_BUCKETS), torch.ones_like(rows, dtype=torch.float64))
    ends = (rows[:, 0], rows.gather(1, last[:, None])[:, 0])
    one_hot = [torch.nn.functional.one_hot(end.remainder(_NUM_BUCKETS), _NUM_BUCKETS).double() for end in ends]
    found = torch.cat([counts, *one_hot], dim=1)
    return _standardize(found[:, (found != found[0]).any(0)])


def _standardize(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-12)


def _hats(features: Tensor) -> list[list[Tensor]]:
    """Return, for each strength of the ridge, the matrices that predict one half from the targets of the other."""
    half = len(features) // 2
    gram = features @ features.T / features.shape[1]
    folds = [(slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))]
    found = []
    for ridge in _RIDGES:
        strength = ridge * torch.eye(len(features), dtype=torch.float64)
        found.append(
            [
                torch.linalg.solve(gram[train, train] + strength[train, train], gram[train, test]).T
                for train, test in folds
            ]
        )
    return found


def _explained_variance(hats: list[list[Tensor]], wanted: Tensor) -> float:
    """Return the share of the variance that is predicted of the half left out, with the best of the strengths."""
    half = len(wanted) // 2
    first, second = wanted[:half], wanted[half:]
    shares = []
    for to_second, to_first in hats:
        left = (second - to_second @ first).square().sum() + (first - to_first @ second).square().sum()
        shares.append(1 - float(left / wanted.square().sum()))
    return max(shares)
