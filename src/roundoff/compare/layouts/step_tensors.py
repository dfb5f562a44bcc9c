"""What the ranks of a run recorded of one step; ranks with the same hashes are read once."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from roundoff.compare.layouts.measured_tensor import MeasuredTensor
from roundoff.errors import RunFolderError
from roundoff.runs import Run, TensorFile

Kind: TypeAlias = Literal["parameter", "gradient", "input"]


@dataclass(frozen=True, slots=True)
class RankTensor:
    """A tensor, and the ranks that have it, bit for bit the same."""

    ranks: tuple[int, ...]
    tensor: MeasuredTensor


@dataclass(frozen=True, kw_only=True)
class StepTensors:
    """Parameters at the start of a step, gradients as the optimizer saw them, and what models were called with."""

    ranks: tuple[int, ...]
    parameters: Mapping[str, list[RankTensor]]
    gradients: Mapping[str, list[RankTensor]]
    inputs: Mapping[str, list[RankTensor]]
    """By place and microbatch."""
    num_read: int
    """Of how many ranks events were read; the others have the same hashes."""

    def parameter_of(self, name: str, rank: int) -> MeasuredTensor | None:
        """Return a rank's part of a parameter, or None if it has none."""
        return next((found.tensor for found in self.parameters.get(name, ()) if rank in found.ranks), None)


def read_step(run: Run, step: int) -> StepTensors:
    """Read the named tensors of a step, of one rank among those with the same hashes."""
    ranks = run.ranks
    contents = _contents_by_kind(run, step) if len(ranks) > 1 else {}
    open_file = functools.cache(functools.partial(tensor_file, run, step))
    readers: set[int] = set()
    found: dict[Kind, dict[str, list[RankTensor]]] = {}
    for kind in ("parameter", "gradient", "input"):
        groups = _equal_ranks(contents.get(kind, {}), ranks)
        readers |= {group[0] for group in groups}
        found[kind] = _read_kind(run, step, kind, groups, open_file)
    return StepTensors(
        ranks=tuple(ranks),
        parameters=found["parameter"],
        gradients=found["gradient"],
        inputs=found["input"],
        num_read=len(readers),
    )


def tensor_file(run: Run, step: int, rank: int) -> TensorFile | None:
    """Open the whole tensors of a rank; None if only summaries were recorded."""
    try:
        return run.tensor_file(step, rank=rank) if (rank, step) in run.tensor_steps else None
    except RunFolderError:
        return None


def _contents_by_kind(run: Run, step: int) -> dict[str, dict[int, list[tuple[str, int, int]]]]:
    """Return name, microbatch and hash of each tensor, by its kind and rank."""
    rows = run.hashes(step=step)
    contents: dict[str, dict[int, list[tuple[str, int, int]]]] = defaultdict(lambda: defaultdict(list))
    columns = [rows[name].to_list() for name in ("rank", "kind", "name", "microbatch", "hash")]
    for rank, kind, name, microbatch, hash_ in zip(*columns, strict=True):
        contents[kind][rank].append((name, microbatch, hash_))
    return contents


def _equal_ranks(contents: Mapping[int, list[tuple[str, int, int]]], ranks: Sequence[int]) -> list[list[int]]:
    """Group the ranks whose tensors of a kind have the same hashes; each on its own where there are no hashes."""
    groups: dict[object, list[int]] = defaultdict(list)
    for rank in ranks:
        content = contents.get(rank)
        groups[tuple(sorted(content)) if content else rank].append(rank)
    return list(groups.values())


def _read_kind(
    run: Run,
    step: int,
    kind: Kind,
    groups: Iterable[Sequence[int]],
    open_file: Callable[[int], TensorFile | None],
) -> dict[str, list[RankTensor]]:
    found: dict[str, dict[tuple[int, str], RankTensor]] = defaultdict(dict)
    for ranks in groups:
        file = open_file(ranks[0])
        for event in run.iter_events(step=step, rank=ranks[0], op=kind):
            if event.phase == "eval":
                continue
            name = event.parameter or f"{event.site}#{event.nth}:{event.output}"
            if kind == "input":
                name = f"{name}@{event.microbatch}"
            same = (event.hash, f"{event.shape}")
            known = found[name].get(same)
            tensor = MeasuredTensor(event=event, file=file) if known is None else known.tensor
            before = () if known is None else known.ranks
            found[name][same] = RankTensor(tuple(sorted((*before, *ranks))), tensor)
    return {name: list(tensors.values()) for name, tensors in found.items()}
