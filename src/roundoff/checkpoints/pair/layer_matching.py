"""Which layer of one checkpoint is which of the other: by name, by shape, by likeness of names, by place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from roundoff.checkpoints.pair.common_names import common_words, likeness, numbers_in, skeleton, telling_parts
from roundoff.checkpoints.pair.layer_groups import UNCOUNTED, CheckpointLayer, fit


class PairedBy(StrEnum):
    """What told that two tensors are the same one."""

    MAP = "map"
    SAME_NAME = "same name"
    RULES = "rules"
    """The names are the same when each framework's words are replaced by PyTorch's."""
    SHAPE = "shape"
    """No other layer of either side has these shapes."""
    EDIT_DISTANCE = "edit distance"
    """Among layers of these shapes, the names that are most alike."""
    POSITION = "position"
    """Layers of these shapes in the order of their numbers, or of the file."""
    VALUES = "values"
    """The numbers themselves are equal, and the names had only let one guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMatch:
    """A layer of the reference, the one of the candidate, and what told so."""

    reference: CheckpointLayer
    candidate: CheckpointLayer
    by: PairedBy


class _Matching:
    """What is matched so far, and what is left of both sides in the order of their files."""

    def __init__(self, reference: Sequence[CheckpointLayer], candidate: Sequence[CheckpointLayer]) -> None:
        self.reference = {layer.place: layer for layer in reference}
        self.candidate = {layer.place: layer for layer in candidate}
        self.matches: list[LayerMatch] = []

    def match(self, reference: CheckpointLayer, candidate: CheckpointLayer, by: PairedBy) -> None:
        del self.reference[reference.place], self.candidate[candidate.place]
        self.matches.append(LayerMatch(reference=reference, candidate=candidate, by=by))

    def groups(
        self, key: Callable[[CheckpointLayer], Hashable]
    ) -> list[tuple[list[CheckpointLayer], list[CheckpointLayer]]]:
        """Return what is left of both sides, put together by key, where both have some; a key of nothing is no key."""
        sides: dict[Hashable, tuple[list[CheckpointLayer], list[CheckpointLayer]]] = defaultdict(lambda: ([], []))
        for place, layers in enumerate((self.reference, self.candidate)):
            for layer in layers.values():
                sides[key(layer)][place].append(layer)
        return [group for name, group in sides.items() if name and all(group)]


def match_layers(reference: Sequence[CheckpointLayer], candidate: Sequence[CheckpointLayer]) -> list[LayerMatch]:
    """Match layers one to one, the surest evidence first; what the evidence does not tell stays unmatched."""
    matching = _Matching(reference, candidate)
    _renumbered(matching)
    _same_path(matching, lambda layer: (layer.path,))
    _same_path(matching, lambda layer: (layer.short_path,))
    _same_path(matching, lambda layer: (common_words(layer.short_path),))
    _same_ending(matching, lambda layer: layer.path)
    _same_ending(matching, lambda layer: common_words(layer.path))
    for key in (_signature, _loose_signature, _weight_shape):
        _same_shapes(matching, key)
    return sorted(matching.matches, key=lambda match: match.reference.place)


def _renumbered(matching: _Matching) -> None:
    """Match by order where one side counts 0, 2, 4 and the other 0, 1, 2: equal numbers mean nothing then."""
    for reference, candidate in matching.groups(lambda layer: (skeleton(layer.short_path), _signature(layer))):
        numbers = [{numbers_in(layer.short_path) for layer in side} for side in (reference, candidate)]
        if len(reference) == len(candidate) > 1 and numbers[0] != numbers[1]:
            _in_order(matching, reference, candidate, by=PairedBy.POSITION)


def _same_path(matching: _Matching, key: Callable[[CheckpointLayer], Hashable]) -> None:
    for reference, candidate in matching.groups(key):
        if len(reference) == len(candidate) == 1 and _fits(reference[0], candidate[0]):
            matching.match(reference[0], candidate[0], PairedBy.RULES)


def _same_ending(matching: _Matching, words: Callable[[CheckpointLayer], tuple[str, ...]]) -> None:
    """Match `backbone.conv1` with `conv1` where no other path ends so."""
    for reference, candidate in matching.groups(lambda layer: words(layer)[-1:]):
        likings = [
            (mine, other)
            for mine in reference
            for other in candidate
            if _end_alike(words(mine), words(other)) and _fits(mine, other)
        ]
        places = [mine.place for mine, _ in likings], [other.place for _, other in likings]
        for mine, other in likings:
            if places[0].count(mine.place) == places[1].count(other.place) == 1:
                matching.match(mine, other, PairedBy.RULES)


def _same_shapes(matching: _Matching, key: Callable[[CheckpointLayer], Hashable]) -> None:
    for reference, candidate in matching.groups(key):
        if len(reference) == len(candidate) == 1:
            matching.match(reference[0], candidate[0], PairedBy.SHAPE)
    for reference, candidate in matching.groups(key):
        _alike(matching, reference, candidate)
    for reference, candidate in matching.groups(key):
        _same_last_number(matching, reference, candidate)
    for reference, candidate in matching.groups(key):
        if len(reference) == len(candidate):
            _in_order(matching, reference, candidate, by=PairedBy.POSITION)


def _alike(matching: _Matching, reference: Sequence[CheckpointLayer], candidate: Sequence[CheckpointLayer]) -> None:
    """Match families (layers whose names differ by numbers only) that like each other best, and no other as well."""
    reference_families, candidate_families = _families(reference), _families(candidate)
    while len(reference_families) > 1 or len(candidate_families) > 1:
        likings = _likings(reference_families, candidate_families)
        mutual = [pair for pair, liking in likings.items() if liking and _is_best(pair, liking, likings)]
        if not mutual:
            return
        for mine, other in mutual:
            _in_order(matching, reference_families.pop(mine), candidate_families.pop(other), by=PairedBy.EDIT_DISTANCE)


def _likings(
    reference: dict[str, list[CheckpointLayer]], candidate: dict[str, list[CheckpointLayer]]
) -> dict[tuple[str, str], float]:
    """Say how alike the names of families of one size are: in all, and in what tells them from the others."""
    likings = {}
    for size in {len(family) for family in reference.values()}:
        sides = [[name for name, family in side.items() if len(family) == size] for side in (reference, candidate)]
        parts = [telling_parts(names) for names in sides]
        for mine in sides[0]:
            for other in sides[1]:
                likings[mine, other] = likeness(parts[0][mine], parts[1][other]) + likeness(mine, other)
    return likings


def _same_last_number(
    matching: _Matching, reference: Sequence[CheckpointLayer], candidate: Sequence[CheckpointLayer]
) -> None:
    """Match `layer#.#.conv3` with `conv#_block#_3_conv`, as often as both come; once is no evidence.

    It takes families apart that lie in one on the other side, as a shortcut's convolution among the others of a block.
    """
    if len(reference) != len(candidate) or len(_families(reference)) == len(_families(candidate)) == 1:
        return
    reference_groups, candidate_groups = _by_last_number(reference), _by_last_number(candidate)
    for mine, layers in reference_groups.items():
        others = [
            other
            for other in candidate_groups
            if other[1] == mine[1] and len(candidate_groups[other]) == len(layers) and len(layers) > 1
        ]
        rivals = [
            other for other in reference_groups if other[1] == mine[1] and len(reference_groups[other]) == len(layers)
        ]
        if len(others) == len(rivals) == 1:
            _in_order(matching, layers, candidate_groups.pop(others[0]), by=PairedBy.POSITION)


def _by_last_number(layers: Sequence[CheckpointLayer]) -> dict[tuple[str, int], list[CheckpointLayer]]:
    found: dict[tuple[str, int], list[CheckpointLayer]] = defaultdict(list)
    for layer in layers:
        numbers = [number for number in numbers_in(layer.short_path) if number >= 0]
        found[skeleton(layer.short_path), numbers[-1] if numbers else -1].append(layer)
    return dict(found)


def _is_best(pair: tuple[str, str], liking: float, likings: dict[tuple[str, str], float]) -> bool:
    rivals = (other for other in likings if other != pair and (other[0] == pair[0] or other[1] == pair[1]))
    return all(likings[rival] < liking for rival in rivals)


def _families(layers: Sequence[CheckpointLayer]) -> dict[str, list[CheckpointLayer]]:
    found: dict[str, list[CheckpointLayer]] = defaultdict(list)
    for layer in layers:
        found[skeleton(layer.short_path)].append(layer)
    return dict(found)


def _in_order(
    matching: _Matching, reference: Sequence[CheckpointLayer], candidate: Sequence[CheckpointLayer], *, by: PairedBy
) -> None:
    for reference_layer, candidate_layer in zip(_ordered(reference), _ordered(candidate), strict=True):
        matching.match(reference_layer, candidate_layer, by)


def _ordered(layers: Sequence[CheckpointLayer]) -> list[CheckpointLayer]:
    """Order by number within one family, and several by the file, but not one that is sorted as text: 10 before 2."""
    families = [[numbers_in(layer.short_path) for layer in family] for family in _families(layers).values()]
    if len(families) == 1:
        return sorted(layers, key=lambda layer: numbers_in(layer.short_path))
    if any(numbers != sorted(numbers) for numbers in families):
        return sorted(layers, key=lambda layer: [(skeleton([word]), numbers_in([word])) for word in layer.short_path])
    return sorted(layers, key=lambda layer: layer.place)


def _signature(layer: CheckpointLayer) -> Hashable:
    return frozenset((leaf, layer.shape(leaf)) for leaf in layer.tensors if leaf != UNCOUNTED)


def _loose_signature(layer: CheckpointLayer) -> Hashable:
    """Return what does not change when a tensor is transposed."""
    return frozenset((leaf, tuple(sorted(layer.shape(leaf)))) for leaf in layer.tensors if leaf != UNCOUNTED)


def _weight_shape(layer: CheckpointLayer) -> Hashable:
    """Return what does not change when a layer has no bias; nothing of layers that have no matrix."""
    return frozenset((leaf, layer.shape(leaf)) for leaf in layer.tensors if len(layer.shape(leaf)) > 1)


def _fits(reference: CheckpointLayer, candidate: CheckpointLayer) -> bool:
    """Say whether any tensor of the two can be laid over the other's."""
    return any(
        fit(
            reference.tensors[leaf].shape,
            candidate.tensors[leaf].shape,
            reference_axes=reference.axes[leaf],
            candidate_axes=candidate.axes[leaf],
        )
        for leaf in reference.tensors.keys() & candidate.tensors.keys()
    )


def _end_alike(reference: tuple[str, ...], candidate: tuple[str, ...]) -> bool:
    """Say whether the shorter path is the end of the other, and no mere number."""
    shortest = min(len(reference), len(candidate))
    ending = reference[len(reference) - shortest :]
    return ending == candidate[len(candidate) - shortest :] and any(not word.isdecimal() for word in ending)
