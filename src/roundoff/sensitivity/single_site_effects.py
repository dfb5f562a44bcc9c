"""The forward pass of a step, kept so that it can be computed again with one site narrow and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from roundoff.formats import Format
from roundoff.record.torch_private import WeakIdKeyDictionary
from roundoff.sensitivity.effects import Effect
from roundoff.sensitivity.narrow_calls import NarrowCall


class NarrowAlone(NamedTuple):
    """What is narrow while nothing else is: a site's own code, or one op of it."""

    site: str
    op: str | None
    fmt: Format

    def narrows(self, kept: _KeptCall) -> bool:
        """Say whether something of a call is rounded."""
        if kept.site != self.site:
            return False
        return kept.rounds if self.op is None else kept.op == self.op and (kept.rounds or bool(kept.call.own_places))


class _ValueSource(NamedTuple):
    """Where a tensor comes from: which call gave it, and as which of its results."""

    nth: int
    place: int


class _KeptCall(NamedTuple):
    call: NarrowCall
    site: str
    op: str
    sources: tuple[_ValueSource | None, ...]
    """Of each operand; None if it comes from outside."""
    rounds: bool
    writes_part: bool
    """Whether it writes into a part of a tensor: others see that, too."""


class KeptForward:
    """The calls of a forward pass and how values flow from one to the next.

    The loss with a site alone narrow comes from making only those calls again that its rounding reaches, one after the
    other, on what the step itself has kept: no data, no random number and no state of the model is asked for twice.
    """

    def __init__(self) -> None:
        self._kept: list[_KeptCall] = []
        self._sources = WeakIdKeyDictionary()
        self._seen_from = 0
        """The first call behind everything that was computed unseen: what goes through that cannot be followed."""

    def add(self, call: NarrowCall, results: Sequence[Tensor], *, site: str, op: str, rounds: bool) -> None:
        """Keep a call that has just been made; `rounds` if something of it would be rounded."""
        for x in call.originals:
            if x.grad_fn is not None and x not in self._sources:
                self._seen_from = len(self._kept)
        sources = tuple(self._sources.get(x) for x in call.originals)
        for place, x in enumerate(results):
            self._sources[x] = _ValueSource(len(self._kept), place)
        writes_part = call.writes and any(x._is_view() for x in results)
        self._kept.append(_KeptCall(call, site, op, sources, rounds, writes_part))

    def alone(self, formats: Iterable[Format]) -> list[NarrowAlone]:
        """Return everything that could be narrow by itself: sites, and ops that are not all of what their site does."""
        ops: dict[str, dict[str, bool]] = {}
        hidden = {kept.site for kept in self._kept[: self._seen_from]}
        for kept in self._kept:
            if kept.rounds and kept.site not in hidden:
                several = ops.setdefault(kept.site, {})
                several[kept.op] = several.get(kept.op, False) or kept.call.rounds_more_by_itself
        return [
            NarrowAlone(site, op, fmt)
            for fmt in formats
            for site, several in ops.items()
            for op in (None, *(op for op, rounds_more in several.items() if rounds_more or len(several) > 1))
        ]

    def roots(self, roots: Sequence[Tensor]) -> list[_ValueSource] | None:
        """Return where the tensors come from that backward starts at; None if that was not seen."""
        found = [self._sources.get(root) for root in roots]
        return None if None in found else found

    def values_with(self, alone: NarrowAlone, roots: Sequence[_ValueSource]) -> list[Tensor | None] | None:
        """Return what backward would start at if something alone was narrow: None where it is as it was.

        Returns None altogether if that cannot be known: something was let go, or is seen through another tensor.
        """
        values: dict[_ValueSource, Tensor] = {}
        last_use = self._last_uses()
        for nth, kept in enumerate(self._kept):
            is_narrow = alone.narrows(kept)
            if not is_narrow and not any(source in values for source in kept.sources if source is not None):
                continue
            if not kept.call.is_whole or (kept.writes_part and kept.sources[0] not in values):
                return None
            for place, x in enumerate(_repeat_call(kept, values, alone if is_narrow else None)):
                values[_ValueSource(nth, place)] = x
            for source in kept.sources:
                if source is not None and last_use[source] == nth and source not in roots:
                    values.pop(source, None)
        return [values.get(root) for root in roots]

    def _last_uses(self) -> Mapping[_ValueSource, int]:
        return {source: nth for nth, kept in enumerate(self._kept) for source in kept.sources if source is not None}

    def forget(self) -> None:
        """Let go of everything."""
        self._kept.clear()
        self._sources.clear()
        self._seen_from = 0


def _repeat_call(kept: _KeptCall, values: Mapping[_ValueSource, Tensor], alone: NarrowAlone | None) -> list[Tensor]:
    """Make a call again where some of its operands have other values, rounded if something is narrow."""
    call = kept.call
    operands = [
        x if source is None else values.get(source, x) for x, source in zip(call.operands, kept.sources, strict=True)
    ]
    is_other = kept.sources[0] in values if kept.sources else False
    if alone is None:
        if call.writes and not is_other:
            operands[0] = operands[0].clone()
        return call.made_again(operands, in_place=True)
    narrow = call.made_narrow(operands, alone.fmt, by_itself=alone.op is not None)
    return [operands[0].copy_(narrow[0])] if call.writes and is_other else narrow


class SingleSiteEffects:
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
        self._changes: dict[NarrowAlone, Tensor] = {}
        self._is_unknown: set[NarrowAlone] = set()
        self._resolution = 0.0
        self._has_lost_track = False

    def add(self, forward: KeptForward, roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
        """Add what a backward starts from: the gradients that it starts with are those of the loss."""
        values = forward.roots(roots)
        if values is None:
            self.lose_track()
        if values is None or self._has_lost_track or not self._most:
            return
        before = weighted_loss(roots, seeds)
        self._resolution += max(torch.finfo(root.dtype).eps for root in roots) * abs(float(before))
        lanes = forward.alone(self._formats)
        chosen = self._most_important(lanes)
        for alone in lanes:
            found = forward.values_with(alone, values) if alone in chosen else None
            if found is None:
                self._is_unknown.add(alone)
                continue
            after = [x if x is not None else root for x, root in zip(found, roots, strict=True)]
            self._changes[alone] = self._changes.get(alone, 0.0) + weighted_loss(after, seeds) - before

    def lose_track(self) -> None:
        """Leave it at the first order: something cannot be computed again."""
        self._has_lost_track = True

    def _most_important(self, lanes: Sequence[NarrowAlone]) -> set[NarrowAlone]:
        if len(lanes) <= self._most * len(self._formats):
            return set(lanes)
        effects = self._first_order()
        ranked = sorted(lanes, key=lambda alone: -abs(_first_order_change(effects, alone)))
        return {alone for fmt in self._formats for alone in [x for x in ranked if x.fmt == fmt][: self._most]}

    def corrected(self, effects: tuple[Effect, ...]) -> tuple[tuple[Effect, ...], dict[str, dict[str, float]]]:
        """Return the effects so that those of a site add up to what it does alone, and what is left of single ops.

        The second is by format and by key of the op.
        """
        known = self._known()
        for alone, change in known.items():
            if alone.op is None:
                effects = _distribute(effects, alone, change, resolution=self._resolution)
        of_ops: dict[str, dict[str, float]] = {}
        for alone, change in known.items():
            if alone.op is not None:
                left = change - _first_order_change(effects, alone)
                if abs(left) <= self._resolution:
                    continue
                of_ops.setdefault(alone.fmt.name, {})[f"{alone.site}:{alone.op}"] = left
        return effects, of_ops

    def _known(self) -> dict[NarrowAlone, float]:
        """Return what was computed in every backward; a loss that is not finite says nothing about the others."""
        if self._has_lost_track or not self._changes:
            return {}
        numbers = torch.stack(list(self._changes.values())).tolist()
        found = zip(self._changes, numbers, strict=True)
        return {alone: change for alone, change in found if math.isfinite(change) and alone not in self._is_unknown}


def _first_order_change(effects: Sequence[Effect], alone: NarrowAlone) -> float:
    return math.fsum(each.loss_change for each in _effects_of(effects, alone))


def _effects_of(effects: Sequence[Effect], alone: NarrowAlone) -> list[Effect]:
    key = alone.site if alone.op is None else f"{alone.site}:{alone.op}"
    fmt = alone.fmt.name
    return [each for each in effects if each.site == alone.site and each.fmt == fmt and each.counts({key: fmt})]


def _distribute(
    effects: tuple[Effect, ...], alone: NarrowAlone, change: float, *, resolution: float
) -> tuple[Effect, ...]:
    """Add what the first order has missed to the effects of a site, by their size."""
    own = _effects_of(effects, alone)
    missed = change - math.fsum(each.loss_change for each in own)
    if not own or abs(missed) <= resolution:  # the loss itself knows no smaller differences
        return effects
    total = math.fsum(abs(each.loss_change) for each in own)
    shares = {id(each): abs(each.loss_change) / total if total else 1 / len(own) for each in own}
    return tuple(
        replace(each, loss_change=each.loss_change + missed * shares[id(each)]) if id(each) in shares else each
        for each in effects
    )


def weighted_loss(roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> Tensor:
    """Return the loss that roots stand for, in fp64."""
    losses = [(root.detach().double() * seed.double()).sum() for root, seed in zip(roots, seeds, strict=True)]
    return torch.stack(losses).sum()
