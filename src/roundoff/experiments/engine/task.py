"""A call that is made in a process of its own, and what becomes of it: the same on this machine and on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One call to make. The function is at the top of a module; it, its argument and its value pickle."""

    name: str
    call: Callable[[Any], Any]
    argument: Any
    log: Path | None = None
    """Where the process's own output goes, written only if there is some; None leaves it on the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReply:
    """How one try of a task ended."""

    packed: bytes | None = None
    """The pickled value: whoever hands it on need not import what it is made of."""
    failure: str | None = None
    """One line: the error, or what killed the process. None if the call returned."""
    has_died: bool = False
    """Whether the process ended without an answer, so that another try may go better; a call that raised would not."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """What became of a task: its value, or how it failed."""

    task: Task
    value: Any = None
    failure: str | None = None
    """One line: the error, or what killed the process. None if the call returned."""
    seconds: float = 0.0
    """How long the last try took."""
    num_tries: int = 1
    """How often a process was started for it: once, and again for each one that died."""

    @property
    def is_good(self) -> bool:
        """Whether the call returned."""
        return self.failure is None


OnOutcome = Callable[[TaskOutcome], None]


class Workers(Protocol):
    """Those who make calls: processes of this machine, or a cluster."""

    def start(self, packed: bytes, *, log: Path | None) -> int:
        """Have a pickled call and its argument called in a fresh process; return a number for this try."""

    def next_answer(self) -> tuple[int, WorkerReply]:
        """Wait until a try ends; return its number and how it ended."""

    def close(self) -> None:
        """End what is still running, and leave no process behind."""


def error_in_one_line(error: BaseException) -> str:
    """Name an error and say the first two lines of its text.

    >>> error_in_one_line(ValueError("no such thing"))
    'ValueError: no such thing'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}" if lines else type(error).__name__
