"""What roundoff failed at or did not see, noted in the run, so that neither ever looks like health."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from roundoff.runs.files.folder import gaps_path
from roundoff.runs.files.lines import append_lines
from roundoff.runs.files.plain_json import object_of, to_json
from roundoff.words import join_names, plural

CheckKind: TypeAlias = Literal["probe", "fact", "part", "rule"]

MAX_TRACEBACK_CHARACTERS = 8000
MAX_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One check that raised: a probe, a fact about the training, a part of the watch, or a rule of the diagnosis."""

    check: CheckKind
    name: str
    """Which probe, fact or rule: `half-batch`, `structure`, `overflow`."""
    step: int | None = None
    error: str
    """Type and first line of the exception."""
    traceback: str = ""
    """Python's traceback; the end of it if it is long."""

    @classmethod
    def of(cls, error: BaseException, *, check: CheckKind, name: str, step: int | None = None) -> Failure:
        """Describe an exception that a check raised."""
        first_line = str(error).partition("\n")[0]
        text = "".join(traceback.format_exception(error))
        return cls(
            check=check,
            name=name,
            step=step,
            error=f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__,
            traceback=text[-MAX_TRACEBACK_CHARACTERS:],
        )


def failures_line(failures: Sequence[Failure]) -> str | None:
    """Return the one line that console and page show about failed checks; None if none failed.

    >>> failures_line([Failure(check="probe", name="half-batch", error="KeyError: 'x'")])
    "1 check failed inside roundoff; please report: probe half-batch (KeyError: 'x')"
    """
    if not failures:
        return None
    distinct = list(dict.fromkeys(f"{each.check} {each.name} ({each.error})" for each in failures))
    listed = join_names(distinct, at_most=MAX_LISTED)
    return f"{plural(len(failures), 'check')} failed inside roundoff; please report: {listed}"


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
