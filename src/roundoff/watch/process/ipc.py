"""What a watched process and its parent use to reach each other: a shared page of memory, signals, process control."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_SIGNAL, _THREAD, _IS_ANSWERED, _IS_CLOSED, _LENGTH, _IS_SCRIPT_OVER, _IS_REPORTED = range(7)
"""Words of 32 bits at the start of the page; csrc/crash.cpp uses the first ones, too."""
_TEXT = 64
_SIZE = 16 * 1024
_FLIGHT_SIZE = 2**20
"""Room for what runs/flight.py notes, which is not imported here: the parent forks before anything large is loaded."""
_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
WAKE_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 4
"""A crashing child wakes its parent with it."""
STACKS_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 3
"""The parent requests the child's Python stacks with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLocation:
    """What the child reports to its parent about the run once its folder exists."""

    folder: str
    """An absolute path: the script may change the working directory."""
    rank: int
    is_sync: bool = False
    has_ops: bool = False

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.folder)


class SharedPage:
    """Holds what child and parent must know about each other even while the child is crashing."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, _SIZE)
        self.flight = mmap.mmap(-1, _FLIGHT_SIZE)
        """What the child is doing; it costs memory only as far as it is used."""
        self._words = memoryview(self.memory).cast("i")

    @property
    def address(self) -> int:
        """Where the page is in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def announce(self, location: RunLocation) -> None:
        """Tell the parent where the run folder is, unless the path is too long for the page."""
        text = json.dumps(asdict(location)).encode()
        if len(text) <= _SIZE - _TEXT:
            self.memory[_TEXT : _TEXT + len(text)] = text
            self._words[_LENGTH] = len(text)

    def location(self) -> RunLocation | None:
        """Return what the child has announced; None before that."""
        length = self._words[_LENGTH]
        return RunLocation(**json.loads(self.memory[_TEXT : _TEXT + length])) if length else None

    def crash(self) -> tuple[int, int] | None:
        """Return the signal and thread of a child that is crashing and waits for an answer."""
        if not self._words[_SIGNAL] or self._words[_IS_ANSWERED]:
            return None
        return self._words[_SIGNAL], self._words[_THREAD]

    def answer(self) -> None:
        """Let the crashing child go."""
        self._words[_IS_ANSWERED] = 1

    @property
    def is_closed(self) -> bool:
        """Whether the child has reported on the run and is about to exit."""
        return bool(self._words[_IS_CLOSED])

    @property
    def script_has_ended(self) -> bool:
        """Whether the script is over: the child only diagnoses and exits."""
        return self.is_closed or bool(self._words[_IS_SCRIPT_OVER])

    def note_script_ended(self) -> None:
        """Note that the script is over."""
        self._words[_IS_SCRIPT_OVER] = 1

    @property
    def is_reported(self) -> bool:
        """Whether the parent reports on the run and stops the child, which then need not report."""
        return bool(self._words[_IS_REPORTED])

    def note_reported(self) -> None:
        """Note that the parent reports on the run and stops the child."""
        self._words[_IS_REPORTED] = 1

    def close(self) -> None:
        """Note that the child has reported on the run."""
        self._words[_IS_CLOSED] = 1


class GroupSentinel:
    """A process that only receives signals: one that reaches it was sent to all processes, the child included.

    A signal sent to the parent alone must be forwarded, one sent to the process group (or by a scheduler to every
    process of a job) must not, or the child would receive it twice. Nothing else distinguishes them.
    """

    def __init__(self) -> None:
        self._process = self._fork()

    def has_received(self, number: int) -> bool:
        """Return whether a signal that this process has just received reached the sentinel, too."""
        deadline = time.monotonic() + 0.1  # it may be a moment later
        while not self._is_pending(number):
            if time.monotonic() > deadline or self._process is None:
                return False
            time.sleep(0.005)
        self.close()
        self._process = self._fork()  # which has no pending signals
        return True

    def close(self) -> None:
        """End the sentinel."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                os.kill(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)
            self._process = None

    def _is_pending(self, number: int) -> bool:
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{self._process}/status").read_text().splitlines():
                if line.startswith(("ShdPnd:", "SigPnd:")) and int(line.split()[1], 16) >> (number - 1) & 1:
                    return True
        return False

    def _fork(self) -> int | None:
        if sys.platform != "linux":
            return None
        parent = os.getpid()
        try:
            process = os.fork()
        except OSError:
            return None
        if process == 0:
            try:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                die_with_parent(parent)
                os.closerange(0, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # nothing reads or waits for it
                while True:
                    time.sleep(10**6)
            finally:
                os._exit(0)
        return process


def wait_for_signal(signals: Sequence[int], seconds: float) -> signal.struct_siginfo | None:
    """Wait for one of the signals, which must be blocked and SIGALRM among them; None if none came in time.

    A timer ends the wait. `sigtimedwait` has a limit of its own, but returns memory that it never wrote, as if that
    were a signal, where this process was suspended until the limit was over.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        came = signal.sigwaitinfo(signals)
    except OSError:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    is_ours = came.si_signo == signal.SIGALRM and came.si_code > 0  # sent by the kernel, not by a process
    return None if is_ours else came


def drop_pending(signals: Sequence[int]) -> None:
    """Forget the signals that have come and are blocked."""
    with contextlib.suppress(OSError):
        while signal.sigpending() & set(signals):
            signal.sigtimedwait(signals, 0)


def can_supervise() -> bool:
    """Whether this system can fork and wait for signals."""
    return hasattr(os, "fork") and hasattr(signal, "sigtimedwait")


def die_with_parent(parent: int) -> None:
    """Make sure that this process does not outlive its parent, however that ends. On Linux only."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os.kill(os.getpid(), signal.SIGKILL)


def let_trace(process: int) -> None:
    """Allow another process and its children to trace this one, which Linux may forbid otherwise."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PTRACER, process)


def send_to_thread(process: int, thread: int, number: int) -> None:
    """Send a signal to one thread of a process, or to the process if that is not possible."""
    with contextlib.suppress(ProcessLookupError):
        send = getattr(ctypes.CDLL(None), "tgkill", None)
        if send is None or send(process, thread, number) != 0:
            os.kill(process, number)


def die_by(number: int) -> None:
    """End this process by a signal, as if it had been sent to it, without a core file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):  # SIGKILL and SIGSTOP have no handlers to reset
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
