"""Targets with one number per pixel: whether they lie as their inputs do, and whether indices were interpolated."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, one_hot, pad

from roundoff.runs import DenseTargetProbe

_MAX_SAMPLES, _MIN_SAMPLES = 128, 16
_MAX_BYTES = 32 * 2**20
_MAX_CLASSES = 32
_MAX_CHANNELS = 8
_BETTER = 0.7
"""A target fits better in another position if its error is smaller than this part of the one in its own."""
_NUM_ROUNDS = 3
_RIDGE = 1e-3


class DensePairs:
    """Keeps pictures and targets of the same size from the first steps, as copies in host memory."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._num_samples = self._num_bytes = 0

    def add(self, x: Tensor, target: Tensor) -> None:
        """Keep a batch whose targets have a number for each pixel, as long as there is room."""
        is_picture = x.dim() == 4 and x.is_floating_point() and target.dim() in (3, 4) and x.is_cpu and target.is_cpu
        if not is_picture or len(x) != len(target) or x.shape[-2:] != target.shape[-2:] or min(x.shape[-2:]) < 4:
            return
        size = x.numel() * x.element_size() + target.numel() * target.element_size()
        first = self._pairs[0] if self._pairs else (x, target)
        is_alike = first[0].shape[1:] == x.shape[1:] and first[1].shape[1:] == target.shape[1:]
        if is_alike and self._num_samples < _MAX_SAMPLES and self._num_bytes + size <= _MAX_BYTES:
            self._pairs.append((x.detach().clone(), target.detach().clone()))
            self._num_samples += len(x)
            self._num_bytes += size

    def compare(self, step: int) -> DenseTargetProbe | None:
        """Say how many targets fit their pictures better when they are turned, and how many indices are in between.

        A linear model of the pixels around a place predicts its target; targets are turned, the model fitted again.
        """
        if self._num_samples < _MIN_SAMPLES:
            return None
        x, target = (torch.cat(list(parts)) for parts in zip(*self._pairs, strict=True))
        between, num_edges, equal = _between(target)
        channels = _channels(target)
        turn, share, others = ("", 0.0, 0.0) if channels is None else _best_turn(x.double(), channels)
        return DenseTargetProbe(
            step=step,
            num_samples=len(x),
            num_edges=num_edges,
            between_share=between,
            equal_share=equal,
            turn=turn,
            turned_share=share,
            kept_share=others,
        )


def _channels(target: Tensor) -> Tensor | None:
    if not target.is_floating_point():
        if target.dim() == 4 and target.shape[1] == 1:
            target = target[:, 0]
        classes, places = torch.unique(target, return_inverse=True)
        if target.dim() != 3 or not 1 < len(classes) <= _MAX_CLASSES:
            return None
        found = one_hot(places, len(classes)).permute(0, 3, 1, 2).double()
    else:
        found = (target if target.dim() == 4 else target[:, None]).double()
    if found.shape[1] > _MAX_CHANNELS:
        found = found[:, :_MAX_CHANNELS]
    return found if bool(torch.isfinite(found).all()) and float(found.std()) else None


_TURNS: dict[str, Callable[[Tensor], Tensor]] = {
    "flipped left to right": lambda x: x.flip(-1),
    "flipped upside down": lambda x: x.flip(-2),
    "turned by 180 degrees": lambda x: x.flip(-1, -2),
    "turned by 90 degrees": lambda x: x.rot90(1, (-2, -1)),
    "turned by 270 degrees": lambda x: x.rot90(3, (-2, -1)),
}


def _best_turn(x: Tensor, target: Tensor) -> tuple[str, float, float]:
    """Return the turn that makes most targets fit better, their share, and the share that fits better as it is."""
    near = avg_pool2d(pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    features = torch.cat([x, near, torch.ones_like(x[:, :1])], 1).flatten(2).transpose(1, 2)
    best = ("", 0.0, 0.0)
    if not bool(torch.isfinite(features).all()):
        return best
    for name, turn in _TURNS.items():
        turned = turn(target)
        if turned.shape != target.shape:
            continue
        is_turned = torch.zeros(len(x), dtype=torch.bool)
        for _ in range(_NUM_ROUNDS):
            chosen = torch.where(is_turned[:, None, None, None], turned, target)
            weights = _fit(features, chosen.flatten(2).transpose(1, 2))
            own, other = (_errors(features, each.flatten(2).transpose(1, 2), weights) for each in (target, turned))
            is_turned = other < own
        share, kept = float((other < _BETTER * own).double().mean()), float((own < _BETTER * other).double().mean())
        if min(share, kept) > min(best[1:]):
            best = (name, share, kept)
    return best


def _fit(features: Tensor, target: Tensor) -> Tensor:
    rows, wanted = features.flatten(0, 1), target.flatten(0, 1)
    gram = rows.T @ rows / len(rows)
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weights: Tensor = torch.linalg.solve(gram + ridge, rows.T @ wanted / len(rows))
    return weights


def _errors(features: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    return (features @ weights - target).square().mean((1, 2))


def _between(target: Tensor) -> tuple[float, int, float]:
    """Return the share of indices between those of both neighbours, where these differ by two or more; how many.

    And the share of pixels that are equal to their neighbour: noise has values between others, too.
    """
    x = target.squeeze(1) if target.dim() == 4 else target
    if x.is_floating_point() or x.dim() != 3 or x.dtype is torch.bool:
        return 0.0, 0, 0.0
    num_between = num_edges = 0
    for rows in (x, x.transpose(1, 2)):
        before, here, after = rows[..., :-2].long(), rows[..., 1:-1].long(), rows[..., 2:].long()
        is_edge = (before - after).abs() >= 2
        is_between = (torch.minimum(before, after) < here) & (here < torch.maximum(before, after))
        num_edges += int(is_edge.sum())
        num_between += int((is_edge & is_between).sum())
    return num_between / max(num_edges, 1), num_edges, float((x[..., 1:] == x[..., :-1]).double().mean())
