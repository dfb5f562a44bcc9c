"""A page of memory that a watched process and the one that waits for it share."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import resource
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

# == What Python does not offer of signals and processes: dying with the parent, being traced, reaching one
# == thread.

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61

WAKE_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 4
"""By which a crashing child wakes its parent."""
STACKS_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 3
"""By which the parent asks for the child's Python stacks."""


def can_supervise() -> bool:
    """Whether this system can fork and wait for signals."""
    return hasattr(os, "fork") and hasattr(signal, "sigtimedwait")


def die_with_parent(parent: int) -> None:
    """See to it that this process does not outlive its parent, however that ends. On Linux only."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before we asked
            os.kill(os.getpid(), signal.SIGKILL)


def let_trace(process: int) -> None:
    """Allow another process, and those it starts, to look into this one where Linux would forbid that."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PTRACER, process)


def send_to_thread(process: int, thread: int, number: int) -> None:
    """Send a signal to one thread of a process, or to the process where that cannot be done."""
    with contextlib.suppress(ProcessLookupError):
        send = getattr(ctypes.CDLL(None), "tgkill", None)
        if send is None or send(process, thread, number) != 0:
            os.kill(process, number)


def die_by(number: int) -> None:
    """End this process by a signal, as if it had hit us, without leaving a core file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):  # the last two of them cannot be caught, nor set
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


_SIGNAL, _THREAD, _IS_ANSWERED, _IS_CLOSED, _LENGTH = range(5)
"""Words of 32 bits; csrc/crash.cpp has the same."""
_TEXT = 64
_SIZE = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLocation:
    """What the child tells its parent about the run once it has made its folder."""

    folder: str
    """As a whole path: the script may change its folder."""
    rank: int
    is_sync: bool = False
    has_ops: bool = False

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.folder)


class SharedPage:
    """Holds what child and parent must know of each other even when one of them is crashing."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, _SIZE)
        self._words = memoryview(self.memory).cast("i")

    @property
    def address(self) -> int:
        """Where the page is in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def tell(self, where: RunLocation) -> None:
        """Let the parent know of the run folder; a path too long for the page is not told."""
        text = json.dumps(asdict(where)).encode()
        if len(text) <= _SIZE - _TEXT:
            self.memory[_TEXT : _TEXT + len(text)] = text
            self._words[_LENGTH] = len(text)

    def where(self) -> RunLocation | None:
        """Return what the child has told; None before it has."""
        length = self._words[_LENGTH]
        return RunLocation(**json.loads(self.memory[_TEXT : _TEXT + length])) if length else None

    def crash(self) -> tuple[int, int] | None:
        """Return signal and thread of a child that is crashing and waits for an answer."""
        if not self._words[_SIGNAL] or self._words[_IS_ANSWERED]:
            return None
        return self._words[_SIGNAL], self._words[_THREAD]

    def answer(self) -> None:
        """Let the crashing child go."""
        self._words[_IS_ANSWERED] = 1

    @property
    def is_closed(self) -> bool:
        """Whether the child has said all there is to say about the run; what comes now is its end."""
        return bool(self._words[_IS_CLOSED])

    def close(self) -> None:
        """Note that the child has said all there is to say."""
        self._words[_IS_CLOSED] = 1
