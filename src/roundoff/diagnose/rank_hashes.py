"""The hashes of several ranks side by side: what should agree, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

import pyarrow.compute as pc

from roundoff.runs import Run

ByRank: TypeAlias = Mapping[int, int]
"""The hash of one tensor by rank."""


def hashes_by_step(run: Run, kind: str) -> dict[int, dict[str, dict[int, int]]]:
    """Return the hashes of a kind, by step, name and rank.

    Of gradients those after the last backward of the step, of other kinds those taken first: a step that was recorded
    has them again from its replay.
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


def that_differ(step: Mapping[str, ByRank]) -> list[str]:
    """Return the names of the tensors that are not the same on every rank."""
    return [name for name, by_rank in step.items() if len(set(by_rank.values())) > 1]


def odd_rank(by_rank: ByRank) -> int:
    """Return the first rank that has another hash than most; of two ranks the second."""
    usual, _ = Counter(by_rank.values()).most_common(1)[0]
    return next(rank for rank, number in sorted(by_rank.items()) if number != usual)


def is_sharded(run: Run) -> bool:
    """Say whether ranks hold parts of the weights, which differ by design."""
    kinds = {module.kind for structure in run.structures(rank=run.ranks[0]) for module in structure.modules}
    return any(kind.startswith(("FSDP", "FullyShardedDataParallel")) for kind in kinds)


def is_parallel(run: Run) -> bool:
    """Say whether a model of torch's takes care of gradients and buffers."""
    structures = run.structures(rank=run.ranks[0])
    return any(module.kind == "DistributedDataParallel" for s in structures for module in s.modules)
