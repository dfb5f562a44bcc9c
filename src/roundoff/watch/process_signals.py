"""What Python does not offer of signals and processes: dying with the parent, being traced, reaching one thread."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys

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
