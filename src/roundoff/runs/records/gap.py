"""What of a training was not watched, noted in the run, so that what was not seen never looks like health."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from roundoff.runs.files.folder import gaps_path
from roundoff.runs.files.lines import append_lines
from roundoff.runs.files.plain_json import object_of, to_json

GapKind: TypeAlias = Literal["watching", "recording", "part", "replays", "child", "thread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One part of a training that was not watched, or not any more."""

    kind: GapKind
    """watching, recording, part: it stopped; replays: no step is replayed any more; child, thread: one that trained."""
    what: str = ""
    """The part of the watch that stopped, for the user: "checks of losses, gradients and weights"."""
    step: int | None = None
    """Since when."""
    why: str = ""
    rank: int = 0

    def __str__(self) -> str:
        """What a user reads.

        >>> print(Gap(kind="watching", step=120, why="OSError: disk full"))
        watching stopped at step 120 (OSError: disk full)
        """
        where = f" on rank {self.rank}" if self.rank else ""
        since = "" if self.step is None else f" at step {self.step}"
        reason = f" ({self.why})" if self.why else ""
        if self.kind in ("watching", "recording", "part"):
            return f"{self.what or self.kind} stopped{since}{where}{reason}"
        if self.kind == "replays":
            return f"steps were not replayed any more{reason}"
        return f"another {'thread' if self.kind == 'thread' else 'process'} trained and was not watched"


def append_gap(folder: Path, gap: Gap) -> None:
    """Write a gap at once, also from a process that is not the writer of the run; a failure to do so is ignored."""
    with contextlib.suppress(OSError, MemoryError):
        append_lines(gaps_path(folder, rank=gap.rank), [to_json(object_of(gap))])
