"""Runs the training in a child process, so that somebody is left to speak when it is killed, crashes or hangs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from roundoff.watch.process.ipc import WAKE_SIGNAL, SharedPage, can_supervise, die_by, die_with_parent

if TYPE_CHECKING:
    from roundoff.runs.records.info import Ending
    from roundoff.watch.process.process_guard import ProcessGuard

OnEnding = Callable[[Path, int, "Ending"], None]
"""Called with run folder, rank and ending when there is something to tell: a crash, a hang, an end without a word."""

_WAITED_FOR: Sequence[int] = (
    signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    WAKE_SIGNAL,
) if can_supervise() else ()  # fmt: skip


def supervise(
    child_main: Callable[[ProcessGuard], int],
    *,
    hang_after: float | None = None,
    on_hang: Literal["report", "stop"] = "report",
    on_ending: OnEnding | None = None,
) -> int:
    """Run `child_main` in a child process, wait for it, and return its exit code.

    The child leaves through `SystemExit` with that code. If a signal ends it, this process ends by the same signal, so
    that shells and launchers see what they would have seen; a child that was stopped because it hung (no progress for
    `hang_after` seconds) gives 1. Signals sent to this process are passed on, and the child never outlives it. Call it
    before torch is loaded: a fork copies no threads. Where a system cannot fork, `child_main` runs in this process.
    """
    page, parent = SharedPage(), os.getpid()
    os.environ["ROUNDOFF_LAUNCHER"] = f"{parent}:{os.getppid()}"  # by which ranks know that they belong together
    if not can_supervise():
        return _run_here(child_main)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)  # so that none is lost from here on
    child = _fork()
    if child is None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return _run_here(child_main)
    if child == 0:
        from roundoff.watch.process.process_guard import ProcessGuard

        die_with_parent(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sys.exit(child_main(ProcessGuard(page, parent=parent)))
    from roundoff.watch.process.child_monitor import ChildMonitor

    vigil = ChildMonitor(child, page, hang_after=hang_after, on_hang=on_hang, on_ending=on_ending)
    try:
        ending = vigil.keep(_WAITED_FOR)
    finally:
        while signal.sigtimedwait(_WAITED_FOR, 0) is not None:
            pass  # what came too late for the child is not for us
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if ending.was_stopped:
        return 1
    if ending.signal is not None:
        die_by(ending.signal)
    return ending.exit_code or 0


def _fork() -> int | None:
    """Fork with nothing left in the buffers that both would write; None if the system refuses."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        return os.fork()
    except OSError:
        return None


def _run_here(child_main: Callable[[ProcessGuard], int]) -> int:
    from roundoff.watch.process.process_guard import ProcessGuard

    guard = ProcessGuard()
    try:
        return child_main(guard)
    finally:
        guard.close()
