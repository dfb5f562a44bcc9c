"""Pairs the tensors of two checkpoints, whatever frameworks wrote them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from roundoff.checkpoints.checkpoint import Entry, Role
from roundoff.checkpoints.pair.common_names import LEAVES, OptimizerName, read_optimizer_name
from roundoff.checkpoints.pair.layer_groups import UNCOUNTED, Axes, CheckpointLayer, Fit, fit, layers_of
from roundoff.checkpoints.pair.layer_matching import PairedBy, match_layers
from roundoff.checkpoints.pair.name_map import expand_name_map
from roundoff.checkpoints.pair.unpaired_tensors import UnpairedTensor, explain_leftovers
from roundoff.errors import CheckpointError

WEIGHTS = (Role.PARAMETER, Role.BUFFER)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPair:
    """Two corresponding tensors, and how to permute the candidate's axes."""

    reference: str
    candidate: str
    role: Role
    by: PairedBy
    axes: Axes | None = None
    """For `Tensor.permute` of the candidate; it is then reshaped like the reference, from which it may still differ by
    axes of length 1."""
    is_expected: bool = True
    """Whether these axes follow from the layouts of the two formats, not only from the shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The pairs, in the order of the reference, and the tensors without a partner."""

    pairs: tuple[TensorPair, ...]
    only_reference: tuple[UnpairedTensor, ...]
    only_candidate: tuple[UnpairedTensor, ...]


def pair_checkpoints(
    reference: Mapping[str, Entry],
    candidate: Mapping[str, Entry],
    *,
    reference_format: str = "",
    candidate_format: str = "",
    name_map: Mapping[str, str] | None = None,
) -> Pairing:
    """Pair the tensors of two checkpoints one to one.

    First by the map, then by names (with PyTorch's words for those of each framework, without prefixes of wrappers),
    then by layers of the same shapes: unique ones, those with the most similar names, and finally by their order.
    Optimizer state follows its parameter.
    """
    if reference_format == candidate_format and not name_map and _are_alike(reference, candidate):
        same = [TensorPair(reference=n, candidate=n, role=e.role, by=PairedBy.SAME_NAME) for n, e in reference.items()]
        return Pairing(pairs=tuple(same), only_reference=(), only_candidate=())
    reference_side, candidate_side = _Side(reference, reference_format), _Side(candidate, candidate_format)
    pairs = _pair_mapped(reference_side, candidate_side, expand_name_map(name_map or {}, reference, candidate))
    pairs += _pair_weights(reference_side, candidate_side, done=pairs)
    pairs += _pair_remaining_shapes(reference_side, candidate_side, done=pairs)
    pairs += _pair_optimizer_state(reference_side, candidate_side, done=pairs)
    pairs += _pair_others(reference_side, candidate_side, done=pairs)
    place = {name: number for number, name in enumerate(reference)}
    pairs.sort(key=lambda found: place[found.reference])
    left = (
        reference_side.without(found.reference for found in pairs),
        candidate_side.without(found.candidate for found in pairs),
    )
    only_reference, only_candidate = explain_leftovers(*left, reference=reference, candidate=candidate)
    return Pairing(pairs=tuple(pairs), only_reference=only_reference, only_candidate=only_candidate)


def _are_alike(reference: Mapping[str, Entry], candidate: Mapping[str, Entry]) -> bool:
    """Return whether two checkpoints have the same names and shapes, like those of one training."""
    return reference.keys() == candidate.keys() and all(
        entry.shape == candidate[name].shape and entry.role is candidate[name].role for name, entry in reference.items()
    )


class _Side:
    """One checkpoint, grouped into layers."""

    def __init__(self, entries: Mapping[str, Entry], format: str) -> None:
        self.entries = entries
        self.format = format
        weights = [entry for entry in entries.values() if entry.role in WEIGHTS]
        self.layers = layers_of(weights, format=format)
        self.parameters = [entry.name for entry in weights if entry.role is Role.PARAMETER]
        self.axes = {entry.name: layer.axes[leaf] for layer in self.layers for leaf, entry in layer.tensors.items()}

    def without(self, names: Iterable[str]) -> list[Entry]:
        taken = set(names)
        return [entry for entry in self.entries.values() if entry.name not in taken]

    def layers_without(self, names: Iterable[str]) -> list[CheckpointLayer]:
        taken = set(names)
        kept = ((layer, _without_taken(layer.tensors, taken)) for layer in self.layers)
        return [replace(layer, tensors=tensors) for layer, tensors in kept if tensors]

    def optimizer_names(self, names: Iterable[str]) -> dict[OptimizerName, str]:
        found: dict[OptimizerName, str] = {}
        for entry in self.without(names):
            if entry.role is Role.OPTIMIZER:
                read = read_optimizer_name(entry.name, parameters=self.parameters)
                if read is not None and self._can_own(read.owner, entry):
                    found.setdefault(read, entry.name)
        return found

    def _can_own(self, owner: str, state: Entry) -> bool:
        """Return whether a state has the shape of its owner; tied parameters shift the numbers of owners."""
        is_number = math.prod(state.shape) == 1
        return is_number or owner not in self.entries or self.entries[owner].shape == state.shape


def _without_taken(tensors: Mapping[str, Entry], taken: set[str]) -> dict[str, Entry]:
    return {leaf: entry for leaf, entry in tensors.items() if entry.name not in taken}


def _fit_shapes(reference_side: _Side, candidate_side: _Side, reference: str, candidate: str) -> Fit | None:
    return fit(
        reference_side.entries[reference].shape,
        candidate_side.entries[candidate].shape,
        reference_axes=reference_side.axes.get(reference),
        candidate_axes=candidate_side.axes.get(candidate),
    )


def _pair_tensors(
    reference_side: _Side, candidate_side: _Side, reference: str, candidate: str, by: PairedBy
) -> TensorPair | None:
    shape_fit = _fit_shapes(reference_side, candidate_side, reference, candidate)
    if shape_fit is None:
        return None
    by = PairedBy.SAME_NAME if reference == candidate and by is PairedBy.RULES else by
    role = reference_side.entries[reference].role
    return TensorPair(
        reference=reference,
        candidate=candidate,
        role=role,
        by=by,
        axes=shape_fit.axes,
        is_expected=shape_fit.is_expected,
    )


def _pair_mapped(reference_side: _Side, candidate_side: _Side, names: Mapping[str, str]) -> list[TensorPair]:
    pairs = []
    for reference, candidate in names.items():
        found = _pair_tensors(reference_side, candidate_side, reference, candidate, PairedBy.MAP)
        if found is None:
            shapes = reference_side.entries[reference].shape, candidate_side.entries[candidate].shape
            raise CheckpointError.explain(
                f"The map pairs '{reference}' with '{candidate}', which do not fit.",
                why=f"their shapes are {shapes[0]} and {shapes[1]}.",
                fix="correct the line of the map.",
            )
        pairs.append(found)
    return pairs


def _pair_weights(reference_side: _Side, candidate_side: _Side, *, done: Sequence[TensorPair]) -> list[TensorPair]:
    left = (
        reference_side.layers_without(found.reference for found in done),
        candidate_side.layers_without(f.candidate for f in done),
    )
    pairs = []
    for match in match_layers(*left):
        for leaf, entry in match.reference.tensors.items():
            if leaf in match.candidate.tensors:
                pairs.append(
                    _pair_tensors(
                        reference_side, candidate_side, entry.name, match.candidate.tensors[leaf].name, match.by
                    )
                )
    return [found for found in pairs if found is not None]


def _pair_remaining_shapes(
    reference_side: _Side, candidate_side: _Side, *, done: Sequence[TensorPair]
) -> list[TensorPair]:
    """Pair the remaining tensors whose kind and shape is unique on both sides."""
    left = (
        reference_side.layers_without(found.reference for found in done),
        candidate_side.layers_without(f.candidate for f in done),
    )
    groups: dict[tuple[str, tuple[int, ...]], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, layers in enumerate(left):
        for layer in layers:
            for leaf, entry in layer.tensors.items():
                kind = leaf if leaf in LEAVES else ""
                if leaf != UNCOUNTED and layer.shape(leaf):
                    groups[kind, layer.shape(leaf)][side].append(entry.name)
    alone = [(mine[0], other[0]) for mine, other in groups.values() if len(mine) == len(other) == 1]
    pairs = [_pair_tensors(reference_side, candidate_side, *names, PairedBy.SHAPE) for names in alone]
    return [found for found in pairs if found is not None]


def _pair_optimizer_state(
    reference_side: _Side, candidate_side: _Side, *, done: Sequence[TensorPair]
) -> list[TensorPair]:
    """Pair the states of paired parameters; states without their parameter are paired by the same rules."""
    left = (
        reference_side.optimizer_names(found.reference for found in done),
        candidate_side.optimizer_names(found.candidate for found in done),
    )
    owners = {found.reference: found for found in done if found.role in WEIGHTS}
    pairs = []
    for name, reference in left[0].items():
        owner = owners.get(name.owner)
        candidate = left[1].get(OptimizerName(slot=name.slot, owner=owner.candidate)) if owner else None
        if owner is not None and candidate is not None:
            pairs.append(_pair_state(reference_side, candidate_side, reference, candidate, owner))
    return pairs + _pair_ownerless_states(reference_side, candidate_side, left, done=pairs)


def _pair_state(
    reference_side: _Side, candidate_side: _Side, reference: str, candidate: str, owner: TensorPair
) -> TensorPair:
    """Pair two states with the axes of their parameter; a step counter has no axes."""
    is_whole = len(candidate_side.entries[candidate].shape) == len(owner.axes or ())
    by = PairedBy.RULES if owner.by is PairedBy.SAME_NAME else owner.by
    return TensorPair(
        reference=reference,
        candidate=candidate,
        role=Role.OPTIMIZER,
        by=PairedBy.SAME_NAME if reference == candidate else by,
        axes=owner.axes if is_whole else None,
        is_expected=owner.is_expected,
    )


def _pair_ownerless_states(
    reference_side: _Side,
    candidate_side: _Side,
    names: tuple[Mapping[OptimizerName, str], Mapping[OptimizerName, str]],
    *,
    done: Sequence[TensorPair],
) -> list[TensorPair]:
    taken = {found.reference for found in done}, {found.candidate for found in done}
    pairs: list[TensorPair] = []
    for slot in dict.fromkeys(name.slot for name in names[0]):
        owners = [
            {
                name.owner: replace(side.entries[entry], name=name.owner, role=Role.PARAMETER)
                for name, entry in found.items()
                if name.slot == slot and entry not in gone
            }
            for side, found, gone in zip((reference_side, candidate_side), names, taken, strict=True)
        ]
        if all(owners):
            found = pair_checkpoints(
                *owners, reference_format=reference_side.format, candidate_format=candidate_side.format
            )
            pairs += [
                replace(
                    each,
                    reference=names[0][OptimizerName(slot=slot, owner=each.reference)],
                    candidate=names[1][OptimizerName(slot=slot, owner=each.candidate)],
                    role=Role.OPTIMIZER,
                )
                for each in found.pairs
            ]
    return pairs


def _pair_others(reference_side: _Side, candidate_side: _Side, *, done: Sequence[TensorPair]) -> list[TensorPair]:
    """Pair everything that is neither a weight nor the state of one by name alone."""
    left = (
        reference_side.without(found.reference for found in done),
        candidate_side.without(found.candidate for found in done),
    )
    others = {entry.name: entry for entry in left[1]}
    pairs = [
        _pair_tensors(reference_side, candidate_side, entry.name, entry.name, PairedBy.SAME_NAME)
        for entry in left[0]
        if entry.role not in WEIGHTS and entry.name in others and others[entry.name].role is entry.role
    ]
    return [found for found in pairs if found is not None]
