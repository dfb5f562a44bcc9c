"""Matches the layers of two checkpoints: by name, by shape, by similarity of names, by order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from roundoff.checkpoints.pair.layer_groups import (
    UNCOUNTED,
    CheckpointLayer,
    common_words,
    fit,
    likeness,
    numbers_in,
    skeleton,
    telling_parts,
)


class PairedBy(StrEnum):
    """The evidence that two tensors correspond."""

    MAP = "map"
    SAME_NAME = "same name"
    RULES = "rules"
    """The names are equal after replacing each framework's words by PyTorch's."""
    SHAPE = "shape"
    """No other layer on either side has these shapes."""
    EDIT_DISTANCE = "edit distance"
    """Among layers of these shapes, the names are the most similar."""
    POSITION = "position"
    """Layers of these shapes were matched in the order of their numbers, or of the file."""
    VALUES = "values"
    """The values themselves are equal, where the names were not conclusive."""

    @property
    def is_guess(self) -> bool:
        """Whether the two may be the wrong tensors."""
        return self in (PairedBy.SHAPE, PairedBy.EDIT_DISTANCE, PairedBy.POSITION)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMatch:
    """A layer of the reference, its match in the candidate, and the evidence."""

    reference: CheckpointLayer
    candidate: CheckpointLayer
    by: PairedBy


class _Matching:
    """The matches so far, and the remaining layers of both sides in file order."""

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
        """Return the remaining layers of both sides grouped by key, where both have some; empty keys are ignored."""
        sides: dict[Hashable, tuple[list[CheckpointLayer], list[CheckpointLayer]]] = defaultdict(lambda: ([], []))
        for place, layers in enumerate((self.reference, self.candidate)):
            for layer in layers.values():
                sides[key(layer)][place].append(layer)
        return [group for name, group in sides.items() if name and all(group)]


def match_layers(reference: Sequence[CheckpointLayer], candidate: Sequence[CheckpointLayer]) -> list[LayerMatch]:
    """Match layers one to one, the strongest evidence first; layers without clear evidence stay unmatched."""
    matching = _Matching(reference, candidate)
    _match_by_order(matching)
    _same_path(matching, lambda layer: (layer.path,))
    _same_path(matching, lambda layer: (layer.short_path,))
    _same_path(matching, lambda layer: (common_words(layer.short_path),))
    _same_ending(matching, lambda layer: layer.path)
    _same_ending(matching, lambda layer: common_words(layer.path))
    for key in (_signature, _loose_signature, _weight_shape):
        _same_shapes(matching, key)
    return sorted(matching.matches, key=lambda match: match.reference.place)


def _match_by_order(matching: _Matching) -> None:
    """Match by order where one side counts 0, 2, 4 and the other 0, 1, 2: equal numbers are meaningless then."""
    for references, candidates in matching.groups(lambda layer: (skeleton(layer.short_path), _signature(layer))):
        numbers = [{numbers_in(layer.short_path) for layer in side} for side in (references, candidates)]
        if len(references) == len(candidates) > 1 and numbers[0] != numbers[1]:
            _in_order(matching, references, candidates, by=PairedBy.POSITION)


def _same_path(matching: _Matching, key: Callable[[CheckpointLayer], Hashable]) -> None:
    for references, candidates in matching.groups(key):
        if len(references) == len(candidates) == 1 and _fits(references[0], candidates[0]):
            matching.match(references[0], candidates[0], PairedBy.RULES)


def _same_ending(matching: _Matching, words: Callable[[CheckpointLayer], tuple[str, ...]]) -> None:
    """Match `backbone.conv1` with `conv1` where no other path has this ending."""
    for references, candidates in matching.groups(lambda layer: words(layer)[-1:]):
        similarities = [
            (one, other)
            for one in references
            for other in candidates
            if _end_alike(words(one), words(other)) and _fits(one, other)
        ]
        places = [one.place for one, _ in similarities], [other.place for _, other in similarities]
        for one, other in similarities:
            if places[0].count(one.place) == places[1].count(other.place) == 1:
                matching.match(one, other, PairedBy.RULES)


def _same_shapes(matching: _Matching, key: Callable[[CheckpointLayer], Hashable]) -> None:
    for references, candidates in matching.groups(key):
        if len(references) == len(candidates) == 1:
            matching.match(references[0], candidates[0], PairedBy.SHAPE)
    for references, candidates in matching.groups(key):
        _alike(matching, references, candidates)
    for references, candidates in matching.groups(key):
        _same_last_number(matching, references, candidates)
    for references, candidates in matching.groups(key):
        if len(references) == len(candidates):
            _in_order(matching, references, candidates, by=PairedBy.POSITION)


def _alike(matching: _Matching, reference: Sequence[CheckpointLayer], candidate: Sequence[CheckpointLayer]) -> None:
    """Match families (layers whose names differ only by numbers) that are most similar to each other, without a tie."""
    references, candidates = _families(reference), _families(candidate)
    while len(references) > 1 or len(candidates) > 1:
        similarities = _similarities(references, candidates)
        mutual = [
            pair for pair, similarity in similarities.items() if similarity and _is_best(pair, similarity, similarities)
        ]
        if not mutual:
            return
        for one, other in mutual:
            _in_order(matching, references.pop(one), candidates.pop(other), by=PairedBy.EDIT_DISTANCE)


def _similarities(
    references: dict[str, list[CheckpointLayer]], candidates: dict[str, list[CheckpointLayer]]
) -> dict[tuple[str, str], float]:
    """Return how similar the names of equally large families are, in full and in their distinctive parts."""
    similarities = {}
    for size in {len(family) for family in references.values()}:
        sides = [[name for name, family in side.items() if len(family) == size] for side in (references, candidates)]
        parts = [telling_parts(names) for names in sides]
        for one in sides[0]:
            for other in sides[1]:
                similarities[one, other] = likeness(parts[0][one], parts[1][other]) + likeness(one, other)
    return similarities


def _same_last_number(
    matching: _Matching, reference: Sequence[CheckpointLayer], candidate: Sequence[CheckpointLayer]
) -> None:
    """Match `layer#.#.conv3` with `conv#_block#_3_conv` where both occur equally often, and more than once.

    It separates families that are one on the other side, such as the shortcut's convolution among those of a block.
    """
    if len(reference) != len(candidate) or len(_families(reference)) == len(_families(candidate)) == 1:
        return
    references, candidates = _by_last_number(reference), _by_last_number(candidate)
    for one, layers in references.items():
        others = [
            other
            for other in candidates
            if other[1] == one[1] and len(candidates[other]) == len(layers) and len(layers) > 1
        ]
        rivals = [other for other in references if other[1] == one[1] and len(references[other]) == len(layers)]
        if len(others) == len(rivals) == 1:
            _in_order(matching, layers, candidates.pop(others[0]), by=PairedBy.POSITION)


def _by_last_number(layers: Sequence[CheckpointLayer]) -> dict[tuple[str, int], list[CheckpointLayer]]:
    found: dict[tuple[str, int], list[CheckpointLayer]] = defaultdict(list)
    for layer in layers:
        numbers = [number for number in numbers_in(layer.short_path) if number >= 0]
        found[skeleton(layer.short_path), numbers[-1] if numbers else -1].append(layer)
    return dict(found)


def _is_best(pair: tuple[str, str], similarity: float, similarities: dict[tuple[str, str], float]) -> bool:
    rivals = (other for other in similarities if other != pair and (other[0] == pair[0] or other[1] == pair[1]))
    return all(similarities[rival] < similarity for rival in rivals)


def _families(layers: Sequence[CheckpointLayer]) -> dict[str, list[CheckpointLayer]]:
    found: dict[str, list[CheckpointLayer]] = defaultdict(list)
    for layer in layers:
        found[skeleton(layer.short_path)].append(layer)
    return dict(found)


def _in_order(
    matching: _Matching, reference: Sequence[CheckpointLayer], candidate: Sequence[CheckpointLayer], *, by: PairedBy
) -> None:
    for first, second in zip(_sort_layers(reference), _sort_layers(candidate), strict=True):
        matching.match(first, second, by)


def _sort_layers(layers: Sequence[CheckpointLayer]) -> list[CheckpointLayer]:
    """Sort one family by its numbers, several by file order, unless the file is sorted as text (10 before 2)."""
    families = [[numbers_in(layer.short_path) for layer in family] for family in _families(layers).values()]
    if len(families) == 1:
        return sorted(layers, key=lambda layer: numbers_in(layer.short_path))
    if any(numbers != sorted(numbers) for numbers in families):
        return sorted(layers, key=lambda layer: [(skeleton([word]), numbers_in([word])) for word in layer.short_path])
    return sorted(layers, key=lambda layer: layer.place)


def _signature(layer: CheckpointLayer) -> Hashable:
    return frozenset((leaf, layer.shape(leaf)) for leaf in layer.tensors if leaf != UNCOUNTED)


def _loose_signature(layer: CheckpointLayer) -> Hashable:
    """Return a signature that is invariant under transposition."""
    return frozenset((leaf, tuple(sorted(layer.shape(leaf)))) for leaf in layer.tensors if leaf != UNCOUNTED)


def _weight_shape(layer: CheckpointLayer) -> Hashable:
    """Return a signature without the bias; an empty one for layers without a matrix."""
    return frozenset((leaf, layer.shape(leaf)) for leaf in layer.tensors if len(layer.shape(leaf)) > 1)


def _fits(reference: CheckpointLayer, candidate: CheckpointLayer) -> bool:
    """Return whether any tensor of the two fits the other's."""
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
    """Return whether the shorter path is the end of the other, and not just a number."""
    shortest = min(len(reference), len(candidate))
    ending = reference[len(reference) - shortest :]
    return ending == candidate[len(candidate) - shortest :] and any(not word.isdecimal() for word in ending)
