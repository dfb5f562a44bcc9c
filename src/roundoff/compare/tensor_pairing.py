"""Which saved tensor of one source is which of another: by map, by name, else by order and shape."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from roundoff.checkpoints.pairing_map import expand_name_map
from roundoff.compare.tensor_files import SavedTensor

PairedBy = Literal["map", "name", "order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPair:
    """Two tensors that stand for the same thing, and what says so."""

    reference: SavedTensor
    candidate: SavedTensor
    by: PairedBy


def pair_saved(
    reference: Sequence[SavedTensor], candidate: Sequence[SavedTensor], *, name_map: Mapping[str, str] | None = None
) -> list[SavedPair]:
    """Line up two lists of tensors, in the order of the reference.

    Names count without the number that `save_tensor` put before them, and whatever stands between their words; the nth
    tensor of a name belongs to the nth of the other side. What no name fits is lined up by shape: the nth tensor of a
    shape to the nth. Those with the same name are a pair even if their shapes differ.
    """
    pairs = _by_map(reference, candidate, name_map) if name_map else []
    pairs += _by_key(*_left(pairs, reference, candidate), key=lambda tensor: _unnumbered(tensor.name), by="name")
    pairs += _by_key(*_left(pairs, reference, candidate), key=lambda tensor: plain_name(tensor.name), by="name")
    pairs += _by_key(*_left(pairs, reference, candidate), key=lambda tensor: without_ones(tensor.shape), by="order")
    place = {id(tensor): number for number, tensor in enumerate(reference)}
    return sorted(pairs, key=lambda pair: place[id(pair.reference)])


def plain_name(name: str) -> str:
    """Return what of a name tells tensors apart.

    >>> plain_name("step1/00012-blocks_3.Out"), plain_name("step1/blocks.3/out")
    ('step1.blocks.3.out', 'step1.blocks.3.out')
    """
    return re.sub(r"[\W_]+", ".", _unnumbered(name)).strip(".").casefold()


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its dimensions of 1: (1, 3, 1) and (3,) hold the same in the same order."""
    return tuple(size for size in shape if size != 1)


def _unnumbered(name: str) -> str:
    """Return a name without the number of its file."""
    return re.sub(r"(^|/)[0-9]{5,}-([^/]*)$", r"\1\2", name)


def _by_map(
    reference: Sequence[SavedTensor], candidate: Sequence[SavedTensor], name_map: Mapping[str, str]
) -> list[SavedPair]:
    ours, theirs = ({tensor.name: tensor for tensor in side} for side in (reference, candidate))
    told = {_full_name(left, ours): _full_name(right, theirs) for left, right in name_map.items()}
    return [
        SavedPair(reference=ours[left], candidate=theirs[right], by="map")
        for left, right in expand_name_map(told, ours, theirs).items()
    ]


def _full_name(name: str, tensors: Iterable[str]) -> str:
    """Return the name with the number of its file, where it was given without."""
    full = [other for other in tensors if _unnumbered(other) == name]
    return full[0] if name not in tensors and len(full) == 1 else name


def _left(
    pairs: Sequence[SavedPair], reference: Sequence[SavedTensor], candidate: Sequence[SavedTensor]
) -> tuple[list[SavedTensor], list[SavedTensor]]:
    ours, theirs = {id(pair.reference) for pair in pairs}, {id(pair.candidate) for pair in pairs}
    return [x for x in reference if id(x) not in ours], [x for x in candidate if id(x) not in theirs]


def _by_key(
    reference: Sequence[SavedTensor],
    candidate: Sequence[SavedTensor],
    *,
    key: Callable[[SavedTensor], Hashable],
    by: PairedBy,
) -> list[SavedPair]:
    """Pair the nth tensor of a key with the nth of the other side."""
    waiting: dict[Hashable, list[SavedTensor]] = defaultdict(list)
    for tensor in reversed(candidate):
        waiting[key(tensor)].append(tensor)
    return [
        SavedPair(reference=tensor, candidate=waiting[key(tensor)].pop(), by=by)
        for tensor in reference
        if waiting[key(tensor)]
    ]
