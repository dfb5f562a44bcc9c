"""Runs the training in a child process, guarded, so that the parent can report what happened if it dies or hangs."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from roundoff.files import open_appending
from roundoff.watch.process.ipc import (
    STACKS_SIGNAL,
    WAKE_SIGNAL,
    RunLocation,
    SharedPage,
    can_supervise,
    die_by,
    die_with_parent,
    drop_pending,
    let_trace,
)

if TYPE_CHECKING:
    from roundoff.runs.flight import FlightRecorder
    from roundoff.runs.records.info import Ending

MAX_WAIT_SECONDS = 40.0
"""How long a crashing process waits for its parent to take its stacks."""


class ProcessGuard:
    """Keeps a record of what this process is doing, for the case that it dies or hangs.

    `supervise` passes one to the child, and `start_watching` starts it once the run folder exists:

    ```python
    def train(guard: ProcessGuard) -> int:
        from roundoff.record.script import Script, run_script  # torch is loaded here, in the child
        from roundoff.watch.settings import WatchSettings
        from roundoff.watch.watching import next_folder, start_watching

        watch = start_watching(to=next_folder, settings=WatchSettings(), guard=guard)
        with watch.running():
            code = run_script(Script(target="train.py"), on_error=watch.note_exception)
        print(watch.verdict())
        guard.close()  # from now on the parent reports nothing, unless the process crashes
        return code

    sys.exit(supervise(train, hang_after=60.0))
    ```

    Nothing here raises: what cannot be set up is left out.
    """

    def __init__(self, page: SharedPage | None = None, *, parent: int | None = None) -> None:
        from roundoff.runs.flight import FlightRecorder  # with numpy, which the parent has no need of

        self.flight: FlightRecorder = FlightRecorder()
        """Notes what runs: in the run folder once the guard was started, nowhere before."""
        self._page = page
        self._parent = parent
        self._stacks: Path | None = None
        self._descriptor: int | None = None

    def start(self, folder: Path, *, rank: int, is_sync: bool = False, has_ops: bool = False) -> None:
        """Begin to note what runs, and choose where stacks are written if the process crashes or hangs."""
        from roundoff.runs.files.folder import crash_path, flight_path

        folder = folder.absolute()
        with contextlib.suppress(OSError, MemoryError):
            shared = None if self._page is None else self._page.flight
            self.flight = self.flight.create(flight_path(folder, rank=rank), shared=shared)
        # In a process that is not our child, a faulthandler that the user has set up stays as it is.
        if self._page is not None or not faulthandler.is_enabled():
            with contextlib.suppress(OSError, MemoryError):
                self._stacks = crash_path(folder, rank=rank)
                self._descriptor = open_appending(self._stacks)
                self._catch_crashes(self._descriptor)
        if self._page is not None:
            self._page.announce(RunLocation(folder=str(folder), rank=rank, is_sync=is_sync, has_ops=has_ops))

    def move_to(self, folder: Path) -> None:
        """Note that the run folder was moved; the files in it stay open."""
        if self._stacks is not None:
            self._stacks = folder / self._stacks.name
        location = None if self._page is None else self._page.location()
        if self._page is not None and location is not None:
            self._page.announce(replace(location, folder=str(folder)))

    def script_ended(self) -> None:
        """Note that the script is over, and what follows is our own doing: the parent need not explain its end."""
        if self._page is not None:
            self._page.note_script_ended()

    @property
    def is_reported(self) -> bool:
        """Whether the parent has reported on the run already: this process hung, and is about to be stopped."""
        return self._page is not None and self._page.is_reported

    def close(self) -> None:
        """Note that the run is over and reported; crashes are still caught, since processes also crash at exit."""
        self.flight.close()
        if self._page is not None:
            self._page.close()
        elif self._descriptor is not None and self._stacks is not None:
            faulthandler.disable()
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError, MemoryError):
                is_empty = os.fstat(descriptor).st_size == 0
                os.close(descriptor)
                if is_empty:
                    self._stacks.unlink(missing_ok=True)

    def _catch_crashes(self, descriptor: int) -> None:
        # Our own handler is installed first: faulthandler writes its stacks and then calls the previous handler.
        if self._page is not None and self._parent is not None:
            _wait_when_crashing(self._page, self._parent)
            let_trace(self._parent)
        faulthandler.enable(file=descriptor, all_threads=True)
        _use_signal_stack()  # after faulthandler, whose own signal stack is too small
        if self._page is not None and hasattr(faulthandler, "register"):
            faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True)


def _wait_when_crashing(page: SharedPage, parent: int) -> None:
    if (kernels := _kernels()) is not None and hasattr(kernels, "install_crash_handler"):
        kernels.install_crash_handler(page.memory, page.address, parent, WAKE_SIGNAL, MAX_WAIT_SECONDS)


def _use_signal_stack() -> None:
    if (kernels := _kernels()) is not None and hasattr(kernels, "use_signal_stack"):
        kernels.use_signal_stack()


def _kernels() -> ModuleType | None:
    from roundoff.kernels import compiled_kernels  # a guard that is never started does not need them

    return compiled_kernels()


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

    guard = ProcessGuard()
    try:
        return child_main(guard)
    finally:
        guard.close()
