"""Makes calls on this machine, each in a fresh process: one that crashes hurts no other."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from roundoff.experiments.task import Answer
from roundoff.experiments.task_process import FAREWELL_SECONDS, end_group, make_call

_PRELOADED = ("roundoff.experiments.train_row", "roundoff.experiments.measure_launch")
"""What the server that processes are forked from imports. It starts once, so it takes what any task may need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    number: int
    log: Path | None
    process: BaseProcess
    began: float


class ProcessPool:
    """Workers that are processes of this machine, one for each call.

    They are forked from a clean server that has imported the trainer (spawned where there is none), so a fresh one
    costs milliseconds and inherits nothing from this process. What a task leaves running ends with it, and everything
    ends with this process.
    """

    def __init__(self) -> None:
        self._context = _context()
        self._running: dict[Connection, _Running] = {}
        self._num_started = 0

    def start(self, packed: bytes, *, log: Path | None) -> int:
        """Have a pickled call and its argument called in a fresh process; return a number for this try."""
        reader, writer = self._context.Pipe(duplex=False)
        # Not a daemon: a training may start processes of its own.
        process = self._context.Process(target=make_call, args=(packed, log, writer), daemon=False)  # type: ignore[attr-defined]
        process.start()
        writer.close()
        number = self._num_started
        self._num_started += 1
        self._running[reader] = _Running(number=number, log=log, process=process, began=time.perf_counter())
        return number

    def next_answer(self) -> tuple[int, Answer]:
        """Wait until a try ends; return its number and how it ended."""
        # The process as well as its pipe: what it has started may hold the pipe open after it has died.
        ready = wait([*self._running, *(each.process.sentinel for each in self._running.values())])
        reader = next(pipe for pipe, each in self._running.items() if pipe in ready or each.process.sentinel in ready)
        done = self._running.pop(reader)
        return done.number, _answer(done, reader)

    def close(self) -> None:
        """End what is still running: processes that do not end by themselves are killed."""
        running = list(self._running.items())
        self._running.clear()
        for _, each in running:
            each.process.terminate()
            end_group(_leader(each), signal.SIGTERM)
        deadline = time.monotonic() + FAREWELL_SECONDS
        for reader, each in running:
            each.process.join(max(0.0, deadline - time.monotonic()))
            _make_sure_it_ended(each.process)
            end_group(_leader(each), signal.SIGKILL)
            reader.close()


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def _answer(done: _Running, reader: Connection) -> Answer:
    packed, failure, has_died = None, None, True
    with contextlib.suppress(EOFError):
        if reader.poll():
            packed, failure = reader.recv()
            has_died = False
    reader.close()
    # It may not come to an end of its own: it waits for the processes and threads that its task has left.
    done.process.join(FAREWELL_SECONDS)
    end_group(_leader(done), signal.SIGTERM)
    _make_sure_it_ended(done.process)
    _drop_if_empty(done.log)
    if has_died:
        failure = _death(done.process.exitcode or 0)
    return Answer(packed=packed, failure=failure, has_died=has_died, seconds=time.perf_counter() - done.began)


def _make_sure_it_ended(process: BaseProcess) -> None:
    if process.is_alive():
        process.kill()
        process.join()


def _leader(running: _Running) -> int:
    assert running.process.pid is not None
    return running.process.pid


def _drop_if_empty(log: Path | None) -> None:
    with contextlib.suppress(OSError):
        if log is not None and not log.stat().st_size:
            log.unlink()


def _death(code: int) -> str:
    """Say how a process ended that did not answer.

    >>> _death(-9)
    'killed by SIGKILL, perhaps for want of memory'
    """
    if code >= 0:
        return f"the process ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
