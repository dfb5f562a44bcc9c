"""Which ranks had the same inputs, gradients, weights and buffers, and since when they did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow.compute as pc

from roundoff.diagnose.ranks.data_sharding import batch_hashes
from roundoff.runs import Run

ByRank: TypeAlias = Mapping[int, int]
"""The hash of one tensor by rank."""


def hashes_by_step(run: Run, kind: str) -> dict[int, dict[str, dict[int, int]]]:
    """Return the hashes of a kind, by step, name and rank.

    For gradients, those after the last backward of the step; for other kinds, the first of the step, because the replay
    of a recorded step writes them again.
    """
    found: dict[int, dict[str, dict[int, int]]] = {}
    for rank in run.ranks:
        num_backwards = Counter(call.step for call in run.calls(rank=rank) if call.call == "backward")
        most = max(num_backwards.values(), default=1)
        table = run.hashes(rank=rank)
        table = table.filter(pc.equal(table["kind"], kind))
        seen: Counter[tuple[int, str]] = Counter()
        columns = (table[name].to_pylist() for name in ("step", "name", "hash"))
        for step, name, number in zip(*columns, strict=True):
            last = (num_backwards.get(step) or most) if kind == "gradient" else 1
            seen[step, name] += 1
            if seen[step, name] <= last:
                found.setdefault(step, {}).setdefault(name.removeprefix("module."), {})[rank] = number
    return dict(sorted(found.items()))


def differing_names(step: Mapping[str, ByRank]) -> list[str]:
    """Return the names of the tensors that are not the same on every rank."""
    return [name for name, by_rank in step.items() if len(set(by_rank.values())) > 1]


def odd_rank(by_rank: ByRank) -> int:
    """Return the first rank whose hash differs from the most common one; of two ranks, the second."""
    usual, _ = Counter(by_rank.values()).most_common(1)[0]
    return next(rank for rank, number in sorted(by_rank.items()) if number != usual)


def is_sharded(run: Run) -> bool:
    """Say whether each rank holds a part of the weights, so that ranks differ by design."""
    kinds = {module.kind for structure in run.structures(rank=run.ranks[0]) for module in structure.modules}
    return any(kind.startswith(("FSDP", "FullyShardedDataParallel")) for kind in kinds)


def is_parallel(run: Run) -> bool:
    """Say whether DistributedDataParallel reduces gradients and broadcasts buffers."""
    structures = run.structures(rank=run.ranks[0])
    return any(module.kind == "DistributedDataParallel" for s in structures for module in s.modules)


INPUT = "input"
KINDS = ("gradient", "clipped", "parameter", "buffer")
"""What should be the same on every rank: gradients after backward, as the optimizer uses them, weights, buffers."""

Partition = tuple[int | None, ...]
"""A group number for each rank; ranks with equal tensors share one, the largest group is 0. None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive observed steps in which the same ranks agreed with each other."""

    first_step: int
    last_step: int
    num_steps: int
    groups: Partition
    """In the order of `Agreement.ranks`."""
    differing: Sequence[str]
    """Names of the tensors that differed between ranks in its first step."""

    @property
    def is_same(self) -> bool:
        """Whether all known ranks had the same."""
        return len({group for group in self.groups if group is not None}) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far ranks agreed in one kind of tensor, over the steps."""

    kind: str
    """One of `KINDS`, or `INPUT`."""
    ranks: Sequence[int]
    stretches: Sequence[Stretch]
    num_tensors: int
    """The largest number in a step."""
    is_wanted: bool
    """Whether ranks should agree: not in their inputs, nor in sharded weights."""

    @property
    def first_odd(self) -> Stretch | None:
        """The first stretch that is not as it should be, or None."""
        return next((each for each in self.stretches if self.is_odd(each)), None)

    def is_odd(self, stretch: Stretch) -> bool:
        """Say whether ranks differ that should agree, or share a batch."""
        if self.is_wanted:
            return not stretch.is_same
        known = [group for group in stretch.groups if group is not None]
        return self.kind == INPUT and len(set(known)) < len(known)


def rank_agreement(run: Run) -> list[Agreement]:
    """Return how far ranks agreed, by kind of tensor; empty for a training on one rank."""
    ranks = run.ranks
    if len(ranks) < 2:
        return []
    inputs = {rank: batch_hashes(run, rank) for rank in ranks}
    steps = sorted({step for hashes in inputs.values() for step in hashes})
    given = {step: {INPUT: {rank: hash(inputs[rank][step]) for rank in ranks if step in inputs[rank]}}
             for step in steps}  # fmt: skip
    tables = [(INPUT, given, False), *((kind, hashes_by_step(run, kind), not is_sharded(run)) for kind in KINDS)]
    return [_agreement(kind, table, ranks, is_wanted=is_wanted) for kind, table, is_wanted in tables if table]


def _agreement(
    kind: str, table: Mapping[int, Mapping[str, ByRank]], ranks: Sequence[int], *, is_wanted: bool
) -> Agreement:
    stretches: list[Stretch] = []
    for step, tensors in table.items():
        groups = _partition(tensors, ranks)
        if stretches and stretches[-1].groups == groups:
            last = stretches[-1]
            stretches[-1] = Stretch(
                first_step=last.first_step,
                last_step=step,
                num_steps=last.num_steps + 1,
                groups=groups,
                differing=last.differing,
            )
        else:
            names = differing_names(tensors)
            stretches.append(Stretch(first_step=step, last_step=step, num_steps=1, groups=groups, differing=names))
    num_tensors = max(map(len, table.values()))
    return Agreement(kind=kind, ranks=ranks, stretches=stretches, num_tensors=num_tensors, is_wanted=is_wanted)


def _partition(tensors: Mapping[str, ByRank], ranks: Sequence[int]) -> Partition:
    """Return the group of each rank; the largest group is 0, or of equally large ones that of the lowest rank."""
    held: dict[int, list[tuple[str, int]]] = {}
    for name, by_rank in tensors.items():
        for rank, number in by_rank.items():
            held.setdefault(rank, []).append((name, number))
    contents = {rank: hash(tuple(sorted(pairs))) for rank, pairs in held.items()}
    order = [content for content, _ in Counter(contents[rank] for rank in ranks if rank in contents).most_common()]
    numbers = {content: number for number, content in enumerate(order)}
    return tuple(numbers[contents[rank]] if rank in contents else None for rank in ranks)
