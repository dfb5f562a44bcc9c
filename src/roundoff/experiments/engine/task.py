"""A task, which runs in its own process, and its outcome: the same on this machine and on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One call to make. The function is defined at module level; it, its argument and its result can be pickled."""

    name: str
    call: Callable[[Any], Any]
    argument: Any
    log: Path | None = None
    """The file for the output of the process, removed if it stays empty; None leaves the output on the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReply:
    """How one attempt at a task ended."""

    packed: bytes | None = None
    """The pickled result, so that the processes it passes through need not import its types."""
    failure: str | None = None
    """The error, or what killed the process, in one line. None if the call returned."""
    has_died: bool = False
    """Whether the process ended without a reply. Another attempt may then succeed; one that raised would not."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The result of a task: its value, or how it failed."""

    task: Task
    value: Any = None
    failure: str | None = None
    """The error, or what killed the process, in one line. None if the call returned."""
    seconds: float = 0.0
    """How long the last attempt took."""
    num_tries: int = 1
    """How many processes were started for it: one, plus one for each that died."""

    @property
    def is_good(self) -> bool:
        """Whether the call returned."""
        return self.failure is None


OnOutcome = Callable[[TaskOutcome], None]


class Workers(Protocol):
    """What runs the calls: processes on this machine, or a cluster."""

    def start(self, packed: bytes, *, log: Path | None) -> int:
        """Run a pickled call in a new process; return the number of this attempt."""

    def next_answer(self) -> tuple[int, WorkerReply]:
        """Wait until an attempt ends; return its number and how it ended."""

    def close(self) -> None:
        """Stop everything that is still running."""


def error_in_one_line(error: BaseException) -> str:
    """Return the name of an error and the first two lines of its message.

    >>> error_in_one_line(ValueError("no such thing"))
    'ValueError: no such thing'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}" if lines else type(error).__name__
