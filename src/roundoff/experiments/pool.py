"""Runs many calls, each in a fresh process: one that crashes is an outcome that says so and hurts no other."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from roundoff.errors import RoundoffError

_PRELOADED = ("roundoff.experiments.train_row", "roundoff.experiments.measure_launch")
"""What the server that processes are forked from imports. It starts once, so it takes what any task may need."""

_FAREWELL_SECONDS = 5.0
"""How long a process that was told to end may take before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One call to make. The function is at the top of a module; it, its argument and its value pickle."""

    name: str
    call: Callable[[Any], Any]
    argument: Any
    log: Path | None = None
    """Where the process's own output goes, written only if there is some; None leaves it on the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a task: its value, or how it failed."""

    task: Task
    value: Any = None
    failure: str | None = None
    """One line: the error, or what killed the process. None if the call returned."""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether the call returned."""
        return self.failure is None


OnResult = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    place: int
    task: Task
    process: BaseProcess
    answer: Connection
    began: float


def run_many(tasks: Iterable[Task], *, jobs: int = 1, on_result: OnResult | None = None) -> list[Outcome]:
    """Make every call, `jobs` at a time, each in a process of its own; return the outcomes in the order of `tasks`.

    `on_result` is called here, as soon as a task is done. 0 jobs make the calls in this process, one after another:
    for debugging, since a crash then takes everything with it. However this ends, no process is left behind.

    The processes are forked from a clean server that has imported the trainer (spawned where there is none), so a
    fresh one costs milliseconds and inherits nothing from this process.
    """
    waiting = deque(enumerate(tasks))
    outcomes: dict[int, Outcome] = {}

    def finish(place: int, outcome: Outcome) -> None:
        outcomes[place] = outcome
        if on_result is not None:
            on_result(outcome)

    if jobs < 1:
        for place, task in waiting:
            finish(place, _call_here(task))
        return [outcomes[place] for place in sorted(outcomes)]

    context = _context()
    running: dict[Connection, _Running] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                started = _start(context, *waiting.popleft())
                running[started.answer] = started
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                done = running.pop(ready)
                finish(done.place, _outcome_of(done))
    finally:
        _end(list(running.values()))
    return [outcomes[place] for place in sorted(outcomes)]


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def _call_here(task: Task) -> Outcome:
    began = time.perf_counter()
    try:
        value, failure = task.call(task.argument), None
    except Exception as error:
        value, failure = None, _in_one_line(error)
    return Outcome(task=task, value=value, failure=failure, seconds=time.perf_counter() - began)


def _start(context: BaseContext, place: int, task: Task) -> _Running:
    reader, writer = context.Pipe(duplex=False)
    # Not a daemon: a training may start processes of its own.
    process = context.Process(target=_work, args=(task, writer), daemon=False)  # type: ignore[attr-defined]
    process.start()
    writer.close()
    return _Running(place=place, task=task, process=process, answer=reader, began=time.perf_counter())


def _work(task: Task, writer: Connection) -> None:
    """Be the process of one task."""
    if task.log is not None:
        _redirect_output(task.log)
    try:
        answer: tuple[Any, str | None] = (task.call(task.argument), None)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    except Exception as error:
        if not isinstance(error, RoundoffError):
            traceback.print_exc()
        answer = (None, _in_one_line(error))
    try:
        writer.send(answer)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        writer.send((None, f"its value cannot be sent to another process: {error}"))


def _redirect_output(path: Path) -> None:
    """Send what this process prints to a file, what its libraries print included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


def _outcome_of(done: _Running) -> Outcome:
    try:
        value, failure = done.answer.recv()
    except EOFError:
        value, failure = None, ""
    done.answer.close()
    done.process.join()
    if failure == "":
        failure = _death(done.process.exitcode or 0)
    _drop_if_empty(done.task.log)
    return Outcome(task=done.task, value=value, failure=failure, seconds=time.perf_counter() - done.began)


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


def _in_one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}" if lines else type(error).__name__


def _end(running: Sequence[_Running]) -> None:
    """Leave no process behind: those that do not end by themselves are killed."""
    for each in running:
        each.process.terminate()
    deadline = time.monotonic() + _FAREWELL_SECONDS
    for each in running:
        each.process.join(max(0.0, deadline - time.monotonic()))
        if each.process.is_alive():
            each.process.kill()
            each.process.join()
        each.answer.close()
