"""What a watched process does so that its death can be explained: it notes what runs, and where stacks go."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from pathlib import Path
from types import ModuleType

from roundoff.runs.files.folder import crash_path, flight_path
from roundoff.runs.flight import TOTAL_BYTES, FlightRecorder
from roundoff.watch.process.ipc import STACKS_SIGNAL, WAKE_SIGNAL, RunLocation, SharedPage, let_trace

MAX_WAIT_SECONDS = 40.0
"""How long a crashing process waits for its parent to take its stacks."""


class ProcessGuard:
    """Sees to it that somebody can tell afterwards what this process was doing when it died or hung.

    `supervise` makes one and hands it to the child, which starts it when the run folder is known:

    ```python
    def train(guard: ProcessGuard) -> int:
        from roundoff.watch.watching import start_watching  # here torch is loaded: in the child

        watch = start_watching(...)
        guard.start(watch.folder, rank=watch.rank, has_ops=ops)
        watch.flight = guard.flight  # note(), enter() and leave() from the hooks
        code = run_script(script)
        tell_verdict(watch)
        guard.close()  # from here on the parent stays silent, unless the process crashes
        return code

    sys.exit(supervise(train, hang_after=60.0, on_ending=tell_of_ending))
    ```

    Nothing here raises: what cannot be set up is left out.
    """

    def __init__(self, page: SharedPage | None = None, *, parent: int | None = None) -> None:
        self.flight = FlightRecorder(bytearray(TOTAL_BYTES))
        """Notes what runs: into the run folder once the guard was started, into nothing before."""
        self._page = page
        self._parent = parent
        self._stacks: Path | None = None
        self._descriptor: int | None = None

    def start(self, folder: Path, *, rank: int, is_sync: bool = False, has_ops: bool = False) -> None:
        """Begin to note what runs, and say where stacks go when the process crashes or hangs."""
        folder = folder.absolute()
        with contextlib.suppress(OSError):
            self.flight = FlightRecorder.create(flight_path(folder, rank=rank))
        # In a process that is not ours alone, stacks that somebody has sent elsewhere stay there.
        if self._page is not None or not faulthandler.is_enabled():
            with contextlib.suppress(OSError):
                self._stacks = crash_path(folder, rank=rank)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._descriptor = os.open(self._stacks, flags, 0o666)
                self._catch_crashes(self._descriptor)
        if self._page is not None:
            self._page.tell(RunLocation(folder=str(folder), rank=rank, is_sync=is_sync, has_ops=has_ops))

    def close(self) -> None:
        """Note that the run is over and all is said; crashes are still caught, for processes crash while they end."""
        self.flight.close()
        if self._page is not None:
            self._page.close()
        elif self._descriptor is not None and self._stacks is not None:
            faulthandler.disable()
            is_empty = os.fstat(self._descriptor).st_size == 0
            os.close(self._descriptor)
            self._descriptor = None
            if is_empty:
                self._stacks.unlink(missing_ok=True)

    def _catch_crashes(self, descriptor: int) -> None:
        # Our own handler comes first, so that faulthandler finds it there and hands on to it with its stacks written.
        if self._page is not None and self._parent is not None:
            _wait_when_crashing(self._page, self._parent)
            let_trace(self._parent)
        faulthandler.enable(file=descriptor, all_threads=True)
        _use_signal_stack()  # after faulthandler, whose own is small
        if self._page is not None and hasattr(faulthandler, "register"):
            faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True)


def _wait_when_crashing(page: SharedPage, parent: int) -> None:
    if (kernels := _kernels()) is not None and hasattr(kernels, "install_crash_handler"):
        kernels.install_crash_handler(page.memory, page.address, parent, WAKE_SIGNAL, MAX_WAIT_SECONDS)


def _use_signal_stack() -> None:
    if (kernels := _kernels()) is not None and hasattr(kernels, "use_signal_stack"):
        kernels.use_signal_stack()


def _kernels() -> ModuleType | None:
    from roundoff.kernels import compiled  # torch comes with it, and a guard that was not started needs none

    return compiled()
