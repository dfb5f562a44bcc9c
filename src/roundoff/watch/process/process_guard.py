"""What a watched process does so that its death can be explained: it notes what runs, and where stacks are written."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from roundoff.files import open_appending
from roundoff.runs.files.folder import crash_path, flight_path
from roundoff.runs.flight import FlightRecorder
from roundoff.watch.process.ipc import STACKS_SIGNAL, WAKE_SIGNAL, RunLocation, SharedPage, let_trace

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
        self.flight = FlightRecorder()
        """Notes what runs: in the run folder once the guard was started, nowhere before."""
        self._page = page
        self._parent = parent
        self._stacks: Path | None = None
        self._descriptor: int | None = None

    def start(self, folder: Path, *, rank: int, is_sync: bool = False, has_ops: bool = False) -> None:
        """Begin to note what runs, and choose where stacks are written if the process crashes or hangs."""
        folder = folder.absolute()
        with contextlib.suppress(OSError, MemoryError):
            shared = None if self._page is None else self._page.flight
            self.flight = FlightRecorder.create(flight_path(folder, rank=rank), shared=shared)
        # In a process that is not our child, a faulthandler that the user has set up stays as it is.
        if self._page is not None or not faulthandler.is_enabled():
            with contextlib.suppress(OSError, MemoryError):
                self._stacks = crash_path(folder, rank=rank)
                self._descriptor = open_appending(self._stacks)
                self._catch_crashes(self._descriptor)
        if self._page is not None:
            self._page.announce(RunLocation(folder=str(folder), rank=rank, is_sync=is_sync, has_ops=has_ops))

    def move_to(self, folder: Path) -> None:
        """Take note that the run folder was moved; the files in it are open, and stay so."""
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
    from roundoff.kernels import compiled_kernels  # imports torch, which a guard that is never started does not need

    return compiled_kernels()
