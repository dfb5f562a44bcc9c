"""Runs the training in a child process, so that the parent can report what happened if the child dies or hangs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from roundoff.watch.process.ipc import WAKE_SIGNAL, SharedPage, can_supervise, die_by, die_with_parent, drop_pending

if TYPE_CHECKING:
    from roundoff.runs.records.info import Ending
    from roundoff.watch.process.process_guard import ProcessGuard

OnEnding = Callable[[Path, int, "Ending"], None]
"""Called with run folder, rank and ending if there is something to report: a crash, a hang, an unexpected exit."""

_FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGKILL", "SIGSTOP", "SIGPIPE"}
"""Signals that mean this process itself, or that cannot be waited for."""
_WAITED_FOR: Sequence[int] = (
    [*(number for number in signal.Signals if number.name not in _FAULTS), WAKE_SIGNAL] if can_supervise() else []
)


def supervise(
    child_main: Callable[[ProcessGuard], int],
    *,
    hang_after: float | None = None,
    on_hang: Literal["report", "stop"] = "report",
    on_ending: OnEnding | None = None,
) -> int:
    """Run `child_main` in a child process, wait for it, and return its exit code.

    The child exits through `SystemExit` with that code. If a signal kills it, this process dies by the same signal, so
    that shells and launchers see what they would have seen without it; a child that was stopped because it hung (no
    progress for `hang_after` seconds) returns 1. Signals sent to this process alone are forwarded, it is suspended
    together with the child, and the child never outlives it. Call it before torch is loaded: a fork copies no threads.
    Where a system cannot fork, `child_main` runs in this process.
    """
    page, parent = SharedPage(), os.getpid()
    os.environ["ROUNDOFF_LAUNCHER"] = f"{parent}:{os.getppid()}"  # by which ranks recognize that they belong together
    if not can_supervise():
        return _run_here(child_main)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)  # so that none is lost before the child is monitored
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

    monitor = ChildMonitor(child, page, hang_after=hang_after, on_hang=on_hang, on_ending=on_ending)
    try:
        ending = monitor.wait(_WAITED_FOR)
    finally:
        drop_pending(_WAITED_FOR)  # too late for the child, and not meant for this process
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if ending.was_stopped:
        return 1
    if ending.signal is not None:
        die_by(ending.signal)
    return ending.exit_code or 0


def _fork() -> int | None:
    """Fork with empty output buffers, which both processes would write otherwise; None if the system refuses.

    The child goes on with the random numbers of this process, which a start-up file may have seeded.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    drawing = sys.modules.get("random")
    state = None if drawing is None else drawing.getstate()
    try:
        child = os.fork()
    except OSError:
        return None
    if child == 0 and drawing is not None:
        drawing.setstate(state)  # in a child, `random` has seeded itself anew
    return child


def _run_here(child_main: Callable[[ProcessGuard], int]) -> int:
    from roundoff.watch.process.process_guard import ProcessGuard

    guard = ProcessGuard()
    try:
        return child_main(guard)
    finally:
        guard.close()
