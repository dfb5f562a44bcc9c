"""Runs tasks on this machine, each in a new process, so that a crash affects only one of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from roundoff.errors import RoundoffError
from roundoff.files import open_appending


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One call to make. The function is defined at module level; it, its argument and its result can be pickled."""

    name: str
    call: Callable[[Any], Any]
    argument: Any
    log: Path | None = None
    """The file for the output of the process, removed if it stays empty; None leaves the output on the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReply:
    """How one attempt at a task ended."""

    packed: bytes | None = None
    """The pickled result, so that the processes it passes through need not import its types."""
    failure: str | None = None
    """The error, or what killed the process, in one line. None if the call returned."""
    has_died: bool = False
    """Whether the process ended without a reply. Another attempt may then succeed; one that raised would not."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The result of a task: its value, or how it failed."""

    task: Task
    value: Any = None
    failure: str | None = None
    """The error, or what killed the process, in one line. None if the call returned."""
    seconds: float = 0.0
    """How long the last attempt took."""
    num_tries: int = 1
    """How many processes were started for it: one, plus one for each that died."""

    @property
    def is_good(self) -> bool:
        """Whether the call returned."""
        return self.failure is None


OnOutcome = Callable[[TaskOutcome], None]


class Workers(Protocol):
    """What runs the calls: processes on this machine, or a cluster."""

    def start(self, packed: bytes, *, log: Path | None) -> int:
        """Run a pickled call in a new process; return the number of this attempt."""

    def next_answer(self) -> tuple[int, WorkerReply]:
        """Wait until an attempt ends; return its number and how it ended."""

    def close(self) -> None:
        """Stop everything that is still running."""


def error_in_one_line(error: BaseException) -> str:
    """Return the name of an error and the first two lines of its message.

    >>> error_in_one_line(ValueError("no such thing"))
    'ValueError: no such thing'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}" if lines else type(error).__name__


SHUTDOWN_SECONDS = 5.0
"""How long a process may take to end after SIGTERM before it is killed."""


def run_task_process(packed: bytes, log: Path | None, writer: Connection) -> None:
    """Run in the process of one task: send the pickled result and None, or None and how the call failed."""
    # Its own process group, so that what the task starts (ranks, scripts) can be ended with it.
    os.setpgrp()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if log is not None:
        _redirect_output(log)
    writer.send(_call_and_pack(packed))


def _call_and_pack(packed: bytes) -> tuple[bytes | None, str | None]:
    try:
        call, argument = pickle.loads(packed)
        value = call(argument)
    except Exception as error:
        if not isinstance(error, RoundoffError):
            traceback.print_exc()
        return None, error_in_one_line(error)
    try:
        return pickle.dumps(value), None
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return None, f"its result cannot be sent to another process: {error}"


def end_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to a task's process and to everything it started, if they still exist."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _end_with_parent() -> None:
    """Wait until the parent has ended, then end this process and everything it started."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.killpg(0, signal.SIGTERM)
    time.sleep(SHUTDOWN_SECONDS)
    os.killpg(0, signal.SIGKILL)


def _redirect_output(path: Path) -> None:
    """Redirect the output of this process to a file, including what native libraries print."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = open_appending(path)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


_PRELOADED = ("roundoff.experiments.sweep.row_training", "roundoff.experiments.throughput")
"""What the fork server imports: everything that any task may need, because it starts only once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningTask:
    number: int
    log: Path | None
    process: BaseProcess
    began: float


class ProcessPool:
    """Workers that are processes on this machine, one for each call.

    They are forked from a clean fork server that has imported the trainer (or spawned where there is no fork server),
    so a new one costs milliseconds and inherits nothing from this process. What a task leaves running is ended with
    it, and everything ends with this process.
    """

    def __init__(self) -> None:
        self._context = _context()
        self._running: dict[Connection, _RunningTask] = {}
        self._num_started = 0

    def start(self, packed: bytes, *, log: Path | None) -> int:
        """Run a pickled call in a new process; return the number of this attempt."""
        reader, writer = self._context.Pipe(duplex=False)
        # Not a daemon: daemons may not start processes, and a training may (ranks, loader workers).
        process = self._context.Process(target=run_task_process, args=(packed, log, writer), daemon=False)  # type: ignore[attr-defined]
        process.start()
        writer.close()
        number = self._num_started
        self._num_started += 1
        self._running[reader] = _RunningTask(number=number, log=log, process=process, began=time.perf_counter())
        return number

    def next_answer(self) -> tuple[int, WorkerReply]:
        """Wait until an attempt ends; return its number and how it ended."""
        # Wait for the process as well as for its pipe: its children may hold the pipe open after it has died.
        ready = wait([*self._running, *(each.process.sentinel for each in self._running.values())])
        reader = next(pipe for pipe, each in self._running.items() if pipe in ready or each.process.sentinel in ready)
        done = self._running.pop(reader)
        return done.number, _collect_reply(done, reader)

    def close(self) -> None:
        """Stop what is still running; processes that do not end in time are killed."""
        running = list(self._running.items())
        self._running.clear()
        for _, each in running:
            each.process.terminate()
            end_group(_leader(each), signal.SIGTERM)
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        for reader, each in running:
            each.process.join(max(0.0, deadline - time.monotonic()))
            _kill_if_alive(each.process)
            end_group(_leader(each), signal.SIGKILL)
            reader.close()


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def _collect_reply(done: _RunningTask, reader: Connection) -> WorkerReply:
    packed, failure, has_died = None, None, True
    with contextlib.suppress(EOFError):
        if reader.poll():
            packed, failure = reader.recv()
            has_died = False
    reader.close()
    # The process may hang at its end, waiting for processes and threads that the task left running.
    done.process.join(SHUTDOWN_SECONDS)
    end_group(_leader(done), signal.SIGTERM)
    _kill_if_alive(done.process)
    _remove_if_empty(done.log)
    if has_died:
        failure = _describe_death(done.process.exitcode or 0)
    return WorkerReply(packed=packed, failure=failure, has_died=has_died, seconds=time.perf_counter() - done.began)


def _kill_if_alive(process: BaseProcess) -> None:
    if process.is_alive():
        process.kill()
        process.join()


def _leader(running: _RunningTask) -> int:
    assert running.process.pid is not None
    return running.process.pid


def _remove_if_empty(log: Path | None) -> None:
    with contextlib.suppress(OSError):
        if log is not None and not log.stat().st_size:
            log.unlink()


def _describe_death(code: int) -> str:
    """Describe how a process ended that sent no reply.

    >>> _describe_death(-9)
    'killed by SIGKILL (possibly out of memory)'
    """
    if code >= 0:
        return f"the process ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"killed by {name}" + (" (possibly out of memory)" if name == "SIGKILL" else "")
