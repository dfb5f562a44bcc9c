"""The forward pass of a step, kept so that it can be computed again with one site narrow and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from roundoff.formats import Format
from roundoff.record.torch_private import WeakIdKeyDictionary
from roundoff.sensitivity.narrow_call import NarrowCall


class Alone(NamedTuple):
    """What is narrow while nothing else is: a site's own code, or one op of it."""

    site: str
    op: str | None
    fmt: Format

    def narrows(self, kept: _Kept) -> bool:
        """Say whether something of a call is rounded."""
        if kept.site != self.site:
            return False
        return kept.rounds if self.op is None else kept.op == self.op and (kept.rounds or bool(kept.call.own_places))


class _Value(NamedTuple):
    """Where a tensor comes from: which call gave it, and as which of its results."""

    nth: int
    place: int


class _Kept(NamedTuple):
    call: NarrowCall
    site: str
    op: str
    sources: tuple[_Value | None, ...]
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
        self._kept: list[_Kept] = []
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
            self._sources[x] = _Value(len(self._kept), place)
        writes_part = call.writes and any(x._is_view() for x in results)
        self._kept.append(_Kept(call, site, op, sources, rounds, writes_part))

    def alone(self, formats: Iterable[Format]) -> list[Alone]:
        """Return everything that could be narrow by itself: sites, and ops that are not all of what their site does."""
        ops: dict[str, dict[str, bool]] = {}
        hidden = {kept.site for kept in self._kept[: self._seen_from]}
        for kept in self._kept:
            if kept.rounds and kept.site not in hidden:
                several = ops.setdefault(kept.site, {})
                several[kept.op] = several.get(kept.op, False) or kept.call.rounds_more_by_itself
        return [
            Alone(site, op, fmt)
            for fmt in formats
            for site, several in ops.items()
            for op in (None, *(op for op, rounds_more in several.items() if rounds_more or len(several) > 1))
        ]

    def roots(self, roots: Sequence[Tensor]) -> list[_Value] | None:
        """Return where the tensors come from that backward starts at; None if that was not seen."""
        found = [self._sources.get(root) for root in roots]
        return None if None in found else found

    def values_with(self, alone: Alone, roots: Sequence[_Value]) -> list[Tensor | None] | None:
        """Return what backward would start at if something alone was narrow: None where it is as it was.

        Returns None altogether if that cannot be known: something was let go, or is seen through another tensor.
        """
        values: dict[_Value, Tensor] = {}
        last_use = self._last_uses()
        for nth, kept in enumerate(self._kept):
            is_narrow = alone.narrows(kept)
            if not is_narrow and not any(source in values for source in kept.sources if source is not None):
                continue
            if not kept.call.is_whole or (kept.writes_part and kept.sources[0] not in values):
                return None
            for place, x in enumerate(_made(kept, values, alone if is_narrow else None)):
                values[_Value(nth, place)] = x
            for source in kept.sources:
                if source is not None and last_use[source] == nth and source not in roots:
                    values.pop(source, None)
        return [values.get(root) for root in roots]

    def _last_uses(self) -> Mapping[_Value, int]:
        return {source: nth for nth, kept in enumerate(self._kept) for source in kept.sources if source is not None}

    def forget(self) -> None:
        """Let go of everything."""
        self._kept.clear()
        self._sources.clear()
        self._seen_from = 0


def _made(kept: _Kept, values: Mapping[_Value, Tensor], alone: Alone | None) -> list[Tensor]:
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
