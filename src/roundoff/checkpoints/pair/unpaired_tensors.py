"""Explains why a tensor has no partner, and finds the most similar name."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundoff.checkpoints.checkpoint import Entry, Role
from roundoff.checkpoints.pair.common_names import LEAVES, split_name
from roundoff.checkpoints.pair.layer_groups import UNCOUNTED

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
