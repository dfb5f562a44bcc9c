"""How a watched process ended, as its parent saw it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roundoff.runs.atomic import write_atomically
from roundoff.runs.folder import ending_path
from roundoff.runs.plain_json import to_json
from roundoff.runs.typed_json import object_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a process ended, or that it hangs; what it was doing is in its flight recorder and its stacks."""

    pid: int
    exit_code: int | None = None
    """None while it runs, and if a signal ended it."""
    signal: int | None = None
    """The signal that ended it."""
    forwarded_signal: int | None = None
    """The last signal that somebody sent to end it: then its end was wanted."""
    last_rss_bytes: int | None = None
    """The memory it held when it was last looked at."""
    peak_rss_bytes: int | None = None
    """The most it ever held; known when it has ended."""
    available_bytes: int | None = None
    """The memory that was left for more, at the last look: the machine's, or below its control group's limit."""
    memory_bytes: int | None = None
    """All the memory there is for it: the machine's, or its control group's limit."""
    num_oom_kills: int | None = None
    """How many processes the kernel killed for want of memory while it ran; None where the kernel does not say."""
    seconds_without_progress: float | None = None
    """Of the longest hang: how long it got nowhere; None if it never hung."""
    has_gone_on: bool = False
    """Whether it went on again after the hang."""
    was_stopped: bool = False
    """Whether it was ended because it hung."""
    was_over: bool = False
    """Whether the training had ended before, and all was said about it: only the process had not."""
    native_seconds: float | None = None
    """How long it took to get the native stacks."""
    is_sync: bool = False
    """Whether devices ran in synchronous mode."""
    has_ops: bool = False
    """Whether the flight recorder noted every op."""

    def write(self, folder: Path, *, rank: int) -> None:
        """Write it into the run folder, over what was written before. May raise an `OSError`."""
        write_atomically(ending_path(folder, rank=rank), to_json(object_of(self), indent=1).encode())
