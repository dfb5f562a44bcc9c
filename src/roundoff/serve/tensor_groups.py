"""Where a run holds whole tensors: those of recorded steps, of the op that made bad values, of the first batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, get_args

from roundoff.errors import RunFolderError
from roundoff.runs import JsonValue, Run, TensorFile, batch_path
from roundoff.runs.folder import batch_files
from roundoff.serve.refusals import Refusal

Kind = Literal["step", "origin", "batch"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_TITLES: dict[Kind, str] = {"step": "step {}", "origin": "the op that broke step {}", "batch": "batch {}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """Tensors that lie in one file."""

    of: Kind
    step: int
    """Of a batch its number: 0 is the first."""
    rank: int

    @property
    def title(self) -> str:
        """The group in words."""
        return _TITLES[self.of].format(self.step) + (f", rank {self.rank}" if self.rank else "")

    def to_object(self) -> dict[str, JsonValue]:
        """Return the group as a JSON object."""
        return {"of": self.of, "step": self.step, "rank": self.rank, "title": self.title}


def tensor_groups(run: Run) -> list[TensorGroup]:
    """Return everything of a run that holds whole tensors."""
    return list(_groups(run))


def open_group(run: Run, group: TensorGroup) -> TensorFile:
    """Open the tensors of a group; a `Refusal` says which there are if it is none of them."""
    groups = tensor_groups(run)
    if group not in groups:
        there = ", ".join(each.title for each in groups[:12]) or "none"
        raise Refusal(404, f"There are no whole tensors of {group.title}.", why=f"the run holds: {there}.")
    if group.of == "step":
        return run.tensor_file(group.step, rank=group.rank)
    if group.of == "origin":
        return run.replay(group.step).origin_tensors(rank=group.rank)
    return TensorFile(batch_path(run.path, rank=group.rank, index=group.step))


def _groups(run: Run) -> Iterator[TensorGroup]:
    for rank, step in run.tensor_steps:
        yield TensorGroup(of="step", step=step, rank=rank)
    for step in run.replayed_steps:
        with suppress(RunFolderError):  # a replay that is just being written, or is damaged, hides no other
            replay = run.replay(step)
            found = [rank for rank in replay.ranks if replay.origin(rank=rank) is not None]
            yield from (TensorGroup(of="origin", step=step, rank=rank) for rank in found)
    for rank, index, _ in batch_files(run.path):
        yield TensorGroup(of="batch", step=index, rank=rank)
