"""Pairs the tensors of two checkpoints, whatever frameworks wrote them, by their names or by a file that maps these."""

from __future__ import annotations

import difflib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from roundoff.checkpoints.checkpoint import Entry, Role
from roundoff.checkpoints.pair.layer_groups import (
    LEAVES,
    UNCOUNTED,
    Axes,
    CheckpointLayer,
    OptimizerName,
    fit,
    layers_of,
    read_optimizer_name,
    split_name,
)
from roundoff.checkpoints.pair.layer_matching import PairedBy, match_layers
from roundoff.errors import CheckpointError


def read_name_map(path: Path) -> dict[str, str]:
    """Read lines 'name in the reference = name in the candidate'; `#` starts a comment.

    `encoder.* = backbone.*` maps every name with this prefix.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError.explain(f"The map '{path}' cannot be read.", why=str(error)) from error
    names: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        reference, equals, candidate = (part.strip() for part in text.partition("="))
        if not (reference and equals and candidate) or reference in names:
            raise CheckpointError.explain(
                f"Line {number} of the map '{path}' is invalid: '{line.strip()}'.",
                why="its name is in an earlier line." if reference in names else None,
                fix="write 'name in the reference = name in the candidate', each name once.",
            )
        names[reference] = candidate
    return names


def expand_name_map(names: Mapping[str, str], reference: Iterable[str], candidate: Iterable[str]) -> dict[str, str]:
    """Expand `a.* = b.*` to all matching names; raises a `CheckpointError` for unknown or repeated names."""
    references, candidates = list(reference), set(candidate)
    expanded: dict[str, str] = {}
    for left, right in names.items():
        if left.endswith("*") and right.endswith("*"):
            begun = [name for name in references if name.startswith(left[:-1])]
            found = {name: right[:-1] + name[len(left) - 1 :] for name in begun}
            found = {name: other for name, other in found.items() if other in candidates}
            if not found:
                raise _no_such(left, references, "reference") if not begun else _no_such(right, candidates, "candidate")
            expanded.update({name: other for name, other in found.items() if name not in names})
            continue
        if left not in references:
            raise _no_such(left, references, "reference")
        if right not in candidates:
            raise _no_such(right, candidates, "candidate")
        expanded[left] = right
    twice = [name for name in expanded.values() if list(expanded.values()).count(name) > 1]
    if twice:
        raise CheckpointError.explain(
            f"The map names '{twice[0]}' twice.", fix="map each tensor of the candidate once."
        )
    return expanded


def _no_such(name: str, names: Iterable[str], side: str) -> CheckpointError:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)
    return CheckpointError.explain(
        f"The map names '{name}', which the {side} does not have.",
        why=f"the nearest is '{near[0]}'." if near else None,
        fix="use names that `roundoff params` prints: the reference left of '=', the candidate right.",
    )


MAX_NEAREST = 200
"""The most similar name is searched for at most this many tensors per side, because it is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpairedTensor:
    """A tensor that only one of two checkpoints has."""

    name: str
    shape: tuple[int, ...]
    role: Role
    why: str
    nearest: str | None = None
    """The most similar name on the other side."""
    matters: bool = True
    """Whether the model needs it."""


def explain_leftovers(
    only_reference: Sequence[Entry],
    only_candidate: Sequence[Entry],
    *,
    reference: Mapping[str, Entry],
    candidate: Mapping[str, Entry],
) -> tuple[tuple[UnpairedTensor, ...], tuple[UnpairedTensor, ...]]:
    """Explain for each remaining tensor why it has no partner."""
    return (
        _explain(only_reference, only_candidate, candidate),
        _explain(only_candidate, only_reference, reference),
    )


def _explain(left: Sequence[Entry], others: Sequence[Entry], every: Mapping[str, Entry]) -> tuple[UnpairedTensor, ...]:
    common = {_common_name(entry.name): entry for entry in every.values()}
    roles = {entry.role for entry in every.values()}
    shapes = Counter(entry.shape for entry in left), Counter(entry.shape for entry in others)
    found = []
    for number, entry in enumerate(left):
        names = [other.name for other in others if other.role is entry.role] if number < MAX_NEAREST else []
        namesake = common.get(_common_name(entry.name))
        nearest = [namesake.name] if namesake else difflib.get_close_matches(entry.name, names, n=1, cutoff=0.0)
        found.append(
            UnpairedTensor(
                name=entry.name,
                shape=entry.shape,
                role=entry.role,
                why=_why(entry, namesake, roles, shapes),
                nearest=nearest[0] if nearest else None,
                matters=entry.role in (Role.PARAMETER, Role.BUFFER) and not entry.name.endswith(UNCOUNTED),
            )
        )
    return tuple(found)


def _why(entry: Entry, namesake: Entry | None, roles: set[Role], shapes: tuple[Counter[tuple[int, ...]], ...]) -> str:
    if entry.name.endswith(UNCOUNTED):
        return "only PyTorch's batch norms count batches"
    if entry.role in (Role.OPTIMIZER, Role.OTHER) and math.prod(entry.shape) == 1:
        return "every framework has its own counters"
    if entry.role is Role.OPTIMIZER and Role.OPTIMIZER not in roles:
        return "the other side has no optimizer state"
    if namesake and namesake.shape != entry.shape:
        return f"'{namesake.name}' has the same name, but the shape {namesake.shape}"
    here, there = (side[entry.shape] for side in shapes)
    if there:
        return f"{here} tensors of this shape remain here and {there} there, and their names do not match"
    return "the other side has no such name, and no such shape is left"


def _common_name(name: str) -> tuple[tuple[str, ...], str]:
    path, leaf = split_name(name)
    return path, LEAVES.get(leaf, leaf)


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
    sides = _Side(reference, reference_format), _Side(candidate, candidate_format)
    pairer = _Pairer(*sides)
    pairer.pair_mapped(expand_name_map(name_map or {}, reference, candidate))
    pairer.pair_weights()
    pairer.pair_remaining_shapes()
    pairer.pair_optimizer_state()
    pairer.pair_others()
    place = {name: number for number, name in enumerate(reference)}
    only_reference, only_candidate = explain_leftovers(
        sides[0].unpaired_entries(), sides[1].unpaired_entries(), reference=reference, candidate=candidate
    )
    return Pairing(
        pairs=tuple(sorted(pairer.pairs, key=lambda found: place[found.reference])),
        only_reference=only_reference,
        only_candidate=only_candidate,
    )


def _are_alike(reference: Mapping[str, Entry], candidate: Mapping[str, Entry]) -> bool:
    """Return whether two checkpoints have the same names and shapes, like those of one training."""
    return reference.keys() == candidate.keys() and all(
        entry.shape == candidate[name].shape and entry.role is candidate[name].role for name, entry in reference.items()
    )


class _Side:
    """One checkpoint, grouped into layers, and which of its tensors are paired."""

    def __init__(self, entries: Mapping[str, Entry], format: str) -> None:
        self.entries = entries
        self.format = format
        self.paired: set[str] = set()
        weights = [entry for entry in entries.values() if entry.role in WEIGHTS]
        self.layers = layers_of(weights, format=format)
        self.parameters = [entry.name for entry in weights if entry.role is Role.PARAMETER]
        self.axes = {entry.name: layer.axes[leaf] for layer in self.layers for leaf, entry in layer.tensors.items()}

    def unpaired_entries(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.name not in self.paired]

    def unpaired_layers(self) -> list[CheckpointLayer]:
        """Return the layers with the tensors that are not paired yet."""
        kept = (
            (layer, {leaf: entry for leaf, entry in layer.tensors.items() if entry.name not in self.paired})
            for layer in self.layers
        )
        return [replace(layer, tensors=tensors) for layer, tensors in kept if tensors]

    def unpaired_states(self) -> dict[OptimizerName, str]:
        """Return the optimizer states that have the shape of their owner; tied parameters shift the owners' numbers."""
        found: dict[OptimizerName, str] = {}
        for entry in self.unpaired_entries():
            read = read_optimizer_name(entry.name, parameters=self.parameters, others=self.entries)
            if entry.role is Role.OPTIMIZER and read is not None:
                owner = self.entries.get(read.owner)
                if owner is None or owner.shape == entry.shape or math.prod(entry.shape) == 1:
                    found.setdefault(read, entry.name)
        return found


class _Pairer:
    """Pairs the tensors of two checkpoints, the strongest evidence first."""

    def __init__(self, reference: _Side, candidate: _Side) -> None:
        self.pairs: list[TensorPair] = []
        self._reference, self._candidate = reference, candidate

    def _add(self, pair: TensorPair) -> None:
        self.pairs.append(pair)
        self._reference.paired.add(pair.reference)
        self._candidate.paired.add(pair.candidate)

    def _pair_if_fitting(self, reference: str, candidate: str, by: PairedBy) -> bool:
        """Pair two tensors and return True, unless their shapes do not fit."""
        shape_fit = fit(
            self._reference.entries[reference].shape,
            self._candidate.entries[candidate].shape,
            reference_axes=self._reference.axes.get(reference),
            candidate_axes=self._candidate.axes.get(candidate),
        )
        if shape_fit is not None:
            pair = TensorPair(
                reference=reference,
                candidate=candidate,
                role=self._reference.entries[reference].role,
                by=PairedBy.SAME_NAME if reference == candidate and by is PairedBy.RULES else by,
                axes=shape_fit.axes,
                is_expected=shape_fit.is_expected,
            )
            self._add(pair)
        return shape_fit is not None

    def pair_mapped(self, names: Mapping[str, str]) -> None:
        """Pair what the user's map names."""
        for reference, candidate in names.items():
            if not self._pair_if_fitting(reference, candidate, PairedBy.MAP):
                shapes = self._reference.entries[reference].shape, self._candidate.entries[candidate].shape
                raise CheckpointError.explain(
                    f"The map pairs '{reference}' with '{candidate}', which do not fit.",
                    why=f"their shapes are {shapes[0]} and {shapes[1]}.",
                    fix="correct the line of the map.",
                )

    def pair_weights(self) -> None:
        """Pair the tensors of matching layers."""
        for match in match_layers(self._reference.unpaired_layers(), self._candidate.unpaired_layers()):
            for leaf, entry in match.reference.tensors.items():
                if leaf in match.candidate.tensors:
                    self._pair_if_fitting(entry.name, match.candidate.tensors[leaf].name, match.by)

    def pair_remaining_shapes(self) -> None:
        """Pair the remaining tensors whose kind and shape is unique on both sides."""
        groups: dict[tuple[str, tuple[int, ...]], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for place, side in enumerate((self._reference, self._candidate)):
            for layer in side.unpaired_layers():
                for leaf, entry in layer.tensors.items():
                    kind = leaf if leaf in LEAVES else ""
                    if leaf != UNCOUNTED and layer.shape(leaf):
                        groups[kind, layer.shape(leaf)][place].append(entry.name)
        for references, candidates in groups.values():
            if len(references) == len(candidates) == 1:
                self._pair_if_fitting(references[0], candidates[0], PairedBy.SHAPE)

    def pair_optimizer_state(self) -> None:
        """Pair the states of paired parameters; states without their parameter are paired by the same rules."""
        states, other_states = self._reference.unpaired_states(), self._candidate.unpaired_states()
        owners = {found.reference: found for found in self.pairs if found.role in WEIGHTS}
        for name, reference in states.items():
            owner = owners.get(name.owner)
            candidate = other_states.get(OptimizerName(slot=name.slot, owner=owner.candidate)) if owner else None
            if owner is not None and candidate is not None:
                self._pair_state(reference, candidate, owner)
        for slot in dict.fromkeys(name.slot for name in states):
            self._pair_ownerless_states(slot, states, other_states)

    def _pair_state(self, reference: str, candidate: str, owner: TensorPair) -> None:
        """Pair two states with the axes of their parameter; a step counter has no axes."""
        is_whole = len(self._candidate.entries[candidate].shape) == len(owner.axes or ())
        by = PairedBy.RULES if owner.by is PairedBy.SAME_NAME else owner.by
        pair = TensorPair(
            reference=reference,
            candidate=candidate,
            role=Role.OPTIMIZER,
            by=PairedBy.SAME_NAME if reference == candidate else by,
            axes=owner.axes if is_whole else None,
            is_expected=owner.is_expected,
        )
        self._add(pair)

    def _pair_ownerless_states(
        self, slot: str, states: Mapping[OptimizerName, str], other_states: Mapping[OptimizerName, str]
    ) -> None:
        owners = [
            {
                name.owner: replace(side.entries[entry], name=name.owner, role=Role.PARAMETER)
                for name, entry in found.items()
                if name.slot == slot and entry not in side.paired
            }
            for side, found in ((self._reference, states), (self._candidate, other_states))
        ]
        if all(owners):
            paired = pair_checkpoints(
                *owners, reference_format=self._reference.format, candidate_format=self._candidate.format
            )
            for each in paired.pairs:
                reference = states[OptimizerName(slot=slot, owner=each.reference)]
                candidate = other_states[OptimizerName(slot=slot, owner=each.candidate)]
                self._add(replace(each, reference=reference, candidate=candidate, role=Role.OPTIMIZER))

    def pair_others(self) -> None:
        """Pair everything that is neither a weight nor the state of one by name only."""
        others = {entry.name: entry for entry in self._candidate.unpaired_entries()}
        for entry in self._reference.unpaired_entries():
            if entry.role not in WEIGHTS and entry.name in others and others[entry.name].role is entry.role:
                self._pair_if_fitting(entry.name, entry.name, PairedBy.SAME_NAME)
