"""Which ranks had the same inputs, gradients, weights and buffers, and since when they did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from roundoff.runs import ParameterFacts, Run

ByRank: TypeAlias = Mapping[int, int]
"""The hash of one tensor by rank."""


def hashes_by_step(run: Run, kind: str) -> dict[int, dict[str, dict[int, int]]]:
    """Return the hashes of a kind, by step, name and rank; without those of parameters that are sharded by design.

    For gradients, those after the last backward of the step; for other kinds, the first of the step, because the replay
    of a recorded step writes them again.
    """
    found: dict[int, dict[str, dict[int, int]]] = {}
    shards = sharded_parameters(run)
    sites = {name.rpartition(".")[0] for name in shards}
    for rank in run.ranks:
        num_backwards = Counter(call.step for call in run.calls(rank=rank) if call.call == "backward")
        most = max(num_backwards.values(), default=1)
        table = run.hashes(rank=rank)
        table = table.take(table.texts("kind").equals(kind))
        seen: Counter[tuple[int, str]] = Counter()
        columns = (table[name].to_list() for name in ("step", "name", "hash"))
        for step, name, number in zip(*columns, strict=True):
            last = (num_backwards.get(step) or most) if kind == "gradient" else 1
            name = name.removeprefix("module.")
            seen[step, name] += 1
            is_shard = name.rpartition(".")[0] in sites if kind == "buffer" else name in shards
            if seen[step, name] <= last and not is_shard:
                found.setdefault(step, {}).setdefault(name, {})[rank] = number
    return dict(sorted(found.items()))


def batch_hashes(run: Run, rank: int) -> dict[int, str]:
    """Return, by step, the hash of the first model input."""
    found: dict[int, str] = {}
    for batch in run.inputs(rank=rank):
        hashes = [tensor.hash for tensor in batch.tensors if not tensor.is_target and tensor.hash]
        if hashes:
            found[batch.step] = hashes[0]
    return found


def differing_names(step: Mapping[str, ByRank]) -> list[str]:
    """Return the names of the tensors that are not the same on every rank."""
    return [name for name, by_rank in step.items() if len(set(by_rank.values())) > 1]


def odd_rank(by_rank: ByRank) -> int:
    """Return the first rank whose hash differs from the most common one; of two ranks, the second."""
    usual, _ = Counter(by_rank.values()).most_common(1)[0]
    return next(rank for rank, number in sorted(by_rank.items()) if number != usual)


def start_values(run: Run) -> dict[str, dict[int, ParameterFacts]]:
    """Return the facts about each parameter at the start, by name and rank."""
    found: dict[str, dict[int, ParameterFacts]] = {}
    for rank in run.ranks:
        for structure in run.structures(rank=rank)[:1]:
            for fact in structure.parameters:
                if fact.name is not None:
                    found.setdefault(fact.name.removeprefix("module."), {})[rank] = fact
    return found


def sharded_parameters(run: Run) -> frozenset[str]:
    """Return the parameters of which each rank holds another part: they differ between ranks by design.

    A DTensor says so itself. By hand, ranks that share the work of one layer exchange activations in its forward, which
    replicas do not. Then parameters that start differently are parts, and those next to them that start constant.
    """
    facts = start_values(run)
    declared = {name for name, by_rank in facts.items() if any(fact.is_sharded for fact in by_rank.values())}
    if not exchanges_activations(run):
        return frozenset(declared)
    differing = {name for name, by_rank in facts.items() if len({_start(fact) for fact in by_rank.values()}) > 1}
    shards = declared | differing
    sites = {name.rpartition(".")[0] for name in shards}
    constant = {name for name, by_rank in facts.items() if all(fact.std == 0 for fact in by_rank.values())}
    return frozenset(shards | {name for name in constant if name.rpartition(".")[0] in sites})


def _start(fact: ParameterFacts) -> tuple[object, ...]:
    return fact.shape, fact.mean, fact.std, fact.absmax


def exchanges_activations(run: Run) -> bool:
    """Say whether modules call collectives in forward, as the layers of tensor, sequence or expert parallelism do.

    Broadcasts (of buffers) and SyncBatchNorm do not count: replicas use them, too.
    """
    step, rank = min(run.steps, default=None), min(run.ranks, default=0)
    if step is None:
        return False
    kinds = {module.site: module.kind for s in run.structures(rank=rank)[:1] for module in s.modules}
    return any(
        event.op.startswith(("c10d.", "_c10d_functional."))
        and not event.op.startswith(("c10d.broadcast", "c10d.barrier"))
        and event.site in kinds
        and kinds[event.site] not in ("SyncBatchNorm", "DistributedDataParallel")
        for event in run.iter_events(step=step, rank=rank, phase="forward")
    )


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
    """In the order of `RankAgreement.ranks`."""
    differing: Sequence[str]
    """Names of the tensors that differed between ranks in its first step."""

    @property
    def is_same(self) -> bool:
        """Whether all known ranks had the same."""
        return len({group for group in self.groups if group is not None}) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAgreement:
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


def rank_agreement(run: Run) -> list[RankAgreement]:
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
) -> RankAgreement:
    stretches: list[Stretch] = []
    for step, tensors in table.items():
        groups = _partition(tensors, ranks)
        if stretches and stretches[-1].groups == groups:
            stretches[-1] = replace(stretches[-1], last_step=step, num_steps=stretches[-1].num_steps + 1)
        else:
            names = differing_names(tensors)
            stretches.append(Stretch(first_step=step, last_step=step, num_steps=1, groups=groups, differing=names))
    num_tensors = max(map(len, table.values()))
    return RankAgreement(kind=kind, ranks=ranks, stretches=stretches, num_tensors=num_tensors, is_wanted=is_wanted)


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
