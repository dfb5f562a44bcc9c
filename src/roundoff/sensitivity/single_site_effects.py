"""The effect of one narrow site alone: the forward pass is kept and computed again with only that site narrow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from roundoff.formats import Format
from roundoff.kernels.compiled import where_fp64_is
from roundoff.sensitivity.effects import LossEffect
from roundoff.sensitivity.narrow_calls import NarrowCall
from roundoff.torch_private import WeakIdKeyDictionary


class NarrowAlone(NamedTuple):
    """The only thing that is narrow: a site's own code, or one op of it."""

    site: str
    op: str | None
    fmt: Format

    def narrows(self, kept: _KeptCall) -> bool:
        """Whether something of a call is rounded."""
        if kept.site != self.site:
            return False
        return kept.rounds if self.op is None else kept.op == self.op and (kept.rounds or bool(kept.call.own_places))


class _ValueSource(NamedTuple):
    """Where a tensor comes from: the number of the call, and the index of its result."""

    nth: int
    place: int


class _KeptCall(NamedTuple):
    call: NarrowCall
    site: str
    op: str
    sources: tuple[_ValueSource | None, ...]
    """The source of each operand; None if it comes from outside."""
    rounds: bool
    writes_part: bool
    """Whether it writes into a part of a tensor, which is visible through other tensors."""


class KeptForward:
    """The calls of a forward pass, and how values flow from one to the next.

    The loss with only one site narrow is computed by repeating the calls that its rounding affects, in order, on what
    the step itself has kept: no data, no random numbers and no state of the model are needed again.
    """

    def __init__(self) -> None:
        self._kept: list[_KeptCall] = []
        self._sources = WeakIdKeyDictionary()
        self._seen_from = 0
        """The first call after everything that was computed unseen; values before it cannot be followed."""

    def add(self, call: NarrowCall, results: Sequence[Tensor], *, site: str, op: str, rounds: bool) -> None:
        """Keep a call that has just run; `rounds` if something of it would be rounded."""
        for x in call.originals:
            if x.grad_fn is not None and x not in self._sources:
                self._seen_from = len(self._kept)
        sources = tuple(self._sources.get(x) for x in call.originals)
        for place, x in enumerate(results):
            self._sources[x] = _ValueSource(len(self._kept), place)
        # Only `_is_view` says whether a tensor shares the memory of another one.
        writes_part = call.writes and any(x._is_view() for x in results)
        self._kept.append(_KeptCall(call, site, op, sources, rounds, writes_part))

    def alone(self, formats: Iterable[Format]) -> list[NarrowAlone]:
        """Return everything that could be narrow alone: sites, and ops that are not the only op of their site."""
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
        """Return the sources of the tensors that backward starts from; None if one is not known."""
        found = [self._sources.get(root) for root in roots]
        return None if None in found else found

    def values_with(self, alone: NarrowAlone, roots: Sequence[_ValueSource]) -> list[Tensor | None] | None:
        """Return the tensors that backward would start from if only `alone` were narrow; None for unchanged ones.

        Returns None instead of a list if they cannot be computed: a call was released, or writes through a view.
        """
        values: dict[_ValueSource, Tensor] = {}
        last_use = {source: nth for nth, kept in enumerate(self._kept) for source in kept.sources}
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

    def forget(self) -> None:
        """Release everything."""
        self._kept.clear()
        self._sources.clear()
        self._seen_from = 0


def _repeat_call(kept: _KeptCall, values: Mapping[_ValueSource, Tensor], alone: NarrowAlone | None) -> list[Tensor]:
    """Repeat a call whose operands may have other values, rounded if it is the narrow one."""
    call = kept.call
    operands = [
        x if source is None else values.get(source, x) for x, source in zip(call.operands, kept.sources, strict=True)
    ]
    is_other = kept.sources[0] in values if kept.sources else False
    if alone is None:
        if call.writes and not is_other:
            operands[0] = operands[0].clone()
        return call.repeat(operands, in_place=True)
    narrow = call.repeat_narrow(operands, alone.fmt, by_itself=alone.op is not None)
    return [operands[0].copy_(narrow[0])] if call.writes and is_other else narrow


class SingleSiteEffects:
    """First-order effects, corrected where the step was computed again with only one site or op narrow.

    The first order is the error times the gradient. It is cheap, but it misses what is quadratic in the error, which
    matters for formats of few bits, and that a site that runs twice rounds what its first run has changed.

    Args:
        formats: The formats to try.
        most: How many sites and ops are computed for each format: those with the largest first-order effects.
        first_order: Returns the first-order effects so far.
    """

    def __init__(
        self, formats: Sequence[Format], *, most: int, first_order: Callable[[], tuple[LossEffect, ...]]
    ) -> None:
        self._formats = tuple(formats)
        self._most = most
        self._first_order = first_order
        self._changes: dict[NarrowAlone, Tensor] = {}
        self._is_unknown: set[NarrowAlone] = set()
        self._resolution = 0.0
        self._has_lost_track = False

    def add(self, forward: KeptForward, roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
        """Add the changes for one backward pass, which starts from `roots` with the gradients `seeds`."""
        values = forward.roots(roots)
        if values is None:
            self.lose_track()
        if values is None or self._has_lost_track or not self._most:
            return
        before = weighted_loss(roots, seeds)
        self._resolution += max(torch.finfo(root.dtype).eps for root in roots) * abs(float(before))
        candidates = forward.alone(self._formats)
        chosen = self._most_important(candidates)
        for alone in candidates:
            found = forward.values_with(alone, values) if alone in chosen else None
            if found is None:
                self._is_unknown.add(alone)
                continue
            after = [x if x is not None else root for x, root in zip(found, roots, strict=True)]
            self._changes[alone] = self._changes.get(alone, 0.0) + weighted_loss(after, seeds) - before

    def lose_track(self) -> None:
        """Use the first order only: something cannot be computed again."""
        self._has_lost_track = True

    def _most_important(self, candidates: Sequence[NarrowAlone]) -> set[NarrowAlone]:
        if len(candidates) <= self._most * len(self._formats):
            return set(candidates)
        effects = self._first_order()
        ranked = sorted(candidates, key=lambda alone: -abs(_first_order_change(effects, alone)))
        return {alone for fmt in self._formats for alone in [x for x in ranked if x.fmt == fmt][: self._most]}

    def correct(self, effects: tuple[LossEffect, ...]) -> tuple[tuple[LossEffect, ...], dict[str, dict[str, float]]]:
        """Return the effects, corrected to add up to the effect of each site alone, and the rest for single ops.

        The second is by format and by key of the op.
        """
        known = self._computed_changes()
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

    def _computed_changes(self) -> dict[NarrowAlone, float]:
        """Return the changes that were computed in every backward pass and are finite."""
        if self._has_lost_track or not self._changes:
            return {}
        numbers = torch.stack(list(self._changes.values())).tolist()
        found = zip(self._changes, numbers, strict=True)
        return {alone: change for alone, change in found if math.isfinite(change) and alone not in self._is_unknown}


def _first_order_change(effects: Sequence[LossEffect], alone: NarrowAlone) -> float:
    return math.fsum(each.loss_change for each in _effects_of(effects, alone))


def _effects_of(effects: Sequence[LossEffect], alone: NarrowAlone) -> list[LossEffect]:
    key = alone.site if alone.op is None else f"{alone.site}:{alone.op}"
    fmt = alone.fmt.name
    return [each for each in effects if each.site == alone.site and each.fmt == fmt and each.counts({key: fmt})]


def _distribute(
    effects: tuple[LossEffect, ...], alone: NarrowAlone, change: float, *, resolution: float
) -> tuple[LossEffect, ...]:
    """Distribute what the first order missed over the effects of a site, by their size."""
    own = _effects_of(effects, alone)
    missed = change - math.fsum(each.loss_change for each in own)
    if not own or abs(missed) <= resolution:  # below the resolution of the loss itself
        return effects
    total = math.fsum(abs(each.loss_change) for each in own)
    shares = {id(each): abs(each.loss_change) / total if total else 1 / len(own) for each in own}
    return tuple(
        replace(each, loss_change=each.loss_change + missed * shares[id(each)]) if id(each) in shares else each
        for each in effects
    )


def weighted_loss(roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> Tensor:
    """Return the loss in fp64: the sum of the roots, weighted by the gradients that backward starts with."""
    pairs = zip(roots, seeds, strict=True)
    losses = [(where_fp64_is(root.detach()).double() * where_fp64_is(seed).double()).sum() for root, seed in pairs]
    return torch.stack([loss.to(losses[0].device) for loss in losses]).sum()
