"""By how much the loss moves with one site narrow and nothing else, computed from what a step has kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from roundoff.formats import Format
from roundoff.sensitivity.kept_forward import Alone, KeptForward
from roundoff.sensitivity.sensitivity import Effect


class AloneChanges:
    """What the first order says, corrected where the step was computed again with a site or an op alone narrow.

    The first order is an error times the gradient. It is cheap and misses what is quadratic in the error, which counts
    where a format has few bits, and that a site which runs twice rounds what its first run has moved.

    Args:
        formats: The formats to try.
        most: How many sites and ops are computed, for each format: those that matter most by the first order.
        first_order: Returns the effects as they are known by now.
    """

    def __init__(self, formats: Sequence[Format], *, most: int, first_order: Callable[[], tuple[Effect, ...]]) -> None:
        self._formats = tuple(formats)
        self._most = most
        self._first_order = first_order
        self._changes: dict[Alone, Tensor] = {}
        self._is_unknown: set[Alone] = set()
        self._resolution = 0.0
        self._has_lost_track = False

    def add(self, forward: KeptForward, roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
        """Add what a backward starts from: the gradients that it starts with are those of the loss."""
        values = forward.roots(roots)
        if values is None:
            self.lose_track()
        if values is None or self._has_lost_track or not self._most:
            return
        before = weighed(roots, seeds)
        self._resolution += max(torch.finfo(root.dtype).eps for root in roots) * abs(float(before))
        lanes = forward.alone(self._formats)
        chosen = self._most_important(lanes)
        for alone in lanes:
            found = forward.values_with(alone, values) if alone in chosen else None
            if found is None:
                self._is_unknown.add(alone)
                continue
            after = [x if x is not None else root for x, root in zip(found, roots, strict=True)]
            self._changes[alone] = self._changes.get(alone, 0.0) + weighed(after, seeds) - before

    def lose_track(self) -> None:
        """Leave it at the first order: something cannot be computed again."""
        self._has_lost_track = True

    def _most_important(self, lanes: Sequence[Alone]) -> set[Alone]:
        if len(lanes) <= self._most * len(self._formats):
            return set(lanes)
        effects = self._first_order()
        ranked = sorted(lanes, key=lambda alone: -abs(_expected(effects, alone)))
        return {alone for fmt in self._formats for alone in [x for x in ranked if x.fmt == fmt][: self._most]}

    def corrected(self, effects: tuple[Effect, ...]) -> tuple[tuple[Effect, ...], dict[str, dict[str, float]]]:
        """Return the effects so that those of a site add up to what it does alone, and what is left of single ops.

        The second is by format and by key of the op.
        """
        known = self._known()
        for alone, change in known.items():
            if alone.op is None:
                effects = _shared_out(effects, alone, change, resolution=self._resolution)
        of_ops: dict[str, dict[str, float]] = {}
        for alone, change in known.items():
            if alone.op is not None:
                left = change - _expected(effects, alone)
                if abs(left) <= self._resolution:
                    continue
                of_ops.setdefault(alone.fmt.name, {})[f"{alone.site}:{alone.op}"] = left
        return effects, of_ops

    def _known(self) -> dict[Alone, float]:
        """Return what was computed in every backward; a loss that is not finite says nothing about the others."""
        if self._has_lost_track or not self._changes:
            return {}
        numbers = torch.stack(list(self._changes.values())).tolist()
        found = zip(self._changes, numbers, strict=True)
        return {alone: change for alone, change in found if math.isfinite(change) and alone not in self._is_unknown}


def _expected(effects: Sequence[Effect], alone: Alone) -> float:
    return math.fsum(each.loss_change for each in _of(effects, alone))


def _of(effects: Sequence[Effect], alone: Alone) -> list[Effect]:
    key = alone.site if alone.op is None else f"{alone.site}:{alone.op}"
    fmt = alone.fmt.name
    return [each for each in effects if each.site == alone.site and each.fmt == fmt and each.counts({key: fmt})]


def _shared_out(effects: tuple[Effect, ...], alone: Alone, change: float, *, resolution: float) -> tuple[Effect, ...]:
    """Add what the first order has missed to the effects of a site, by their size."""
    own = _of(effects, alone)
    missed = change - math.fsum(each.loss_change for each in own)
    if not own or abs(missed) <= resolution:  # the loss itself knows no smaller differences
        return effects
    total = math.fsum(abs(each.loss_change) for each in own)
    shares = {id(each): abs(each.loss_change) / total if total else 1 / len(own) for each in own}
    return tuple(
        replace(each, loss_change=each.loss_change + missed * shares[id(each)]) if id(each) in shares else each
        for each in effects
    )


def weighed(roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> Tensor:
    """Return the loss that roots stand for, in fp64."""
    losses = [(root.detach().double() * seed.double()).sum() for root, seed in zip(roots, seeds, strict=True)]
    return torch.stack(losses).sum()
