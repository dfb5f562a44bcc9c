"""Where a run holds whole tensors: of recorded steps, of what is kept of a step that broke, of the first batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from roundoff.runs import JsonValue, Run, TensorFile
from roundoff.runs import folder as names
from roundoff.serve.refusals import Refusal

Kind = Literal["step", "origin", "outside", "state", "batch"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_TITLES: dict[Kind, str] = {
    "step": "step {}",
    "origin": "the op that broke step {}",
    "outside": "what came into step {}",
    "state": "the state before step {}",
    "batch": "batch {}",
}
_OF_REPLAYS: dict[Kind, Callable[..., Path]] = {
    "origin": names.origin_tensors_path,
    "outside": names.batch_of_replay_path,
    "state": names.state_path,
}
"""By kind: where the folder of a replayed step has it, of a rank."""


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
    return list(_files(run))


def open_group(run: Run, group: TensorGroup) -> TensorFile:
    """Open the tensors of a group; a `Refusal` says which there are if it is none of them."""
    files = _files(run)
    if group not in files:
        there = ", ".join(each.title for each in list(files)[:12]) or "none"
        raise Refusal(404, f"There are no whole tensors of {group.title}.", why=f"the run holds: {there}.")
    return TensorFile(files[group])


def _files(run: Run) -> dict[TensorGroup, Path]:
    steps = {TensorGroup(of="step", step=step, rank=rank): path for rank, step, path in names.tensor_files(run.path)}
    batches = {TensorGroup(of="batch", step=nth, rank=rank): path for rank, nth, path in names.batch_files(run.path)}
    return steps | dict(_replayed(run)) | batches


def _replayed(run: Run) -> Iterator[tuple[TensorGroup, Path]]:
    for step in run.replayed_steps:
        folder = names.replay_path(run.path, step=step)
        for kind, path_of in _OF_REPLAYS.items():
            for rank in sorted(names.ranks_with_files(folder)):
                path = path_of(folder, rank=rank)
                if path.exists():
                    yield TensorGroup(of=kind, step=step, rank=rank), path
