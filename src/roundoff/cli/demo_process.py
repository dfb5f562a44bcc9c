"""A command of the demo as a process of its own, of which nothing is left behind, however the demo ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from roundoff.cli.screen import columns

PATIENCE_SECONDS = 600.0
"""A command that takes longer than this hangs, and is ended."""
FAREWELL_SECONDS = 5.0
"""How long a command that was told to end may take before it is killed."""


@contextlib.contextmanager
def started(words: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `roundoff WORDS` in a folder and a session of its own; when the block ends, all of it has ended."""
    with _holding_interrupts() as interrupts:
        process = _start(words, folder)
    # Reading its output waits for as long as it writes none: a command that hangs is ended from outside.
    watchdog = threading.Timer(PATIENCE_SECONDS, _end, [process])
    watchdog.daemon = True
    try:
        watchdog.start()
        if interrupts:
            raise KeyboardInterrupt
        yield process
    finally:
        watchdog.cancel()
        _end(process)
        assert process.stdout is not None
        process.stdout.close()


def lines_of(process: subprocess.Popen[str], kept: list[str]) -> Iterator[str]:
    """Yield what a process prints, line by line as it comes, and keep it."""
    assert process.stdout is not None
    for line in process.stdout:
        kept.append(line.rstrip())
        yield kept[-1]


def _start(words: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    # Two threads on two busy cores can be thirty times slower than one.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "COLUMNS": str(columns())}
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.Popen(
        [sys.executable, "-m", "roundoff", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


@contextlib.contextmanager
def _holding_interrupts() -> Iterator[list[int]]:
    """Collect interrupts while the block runs: one in the middle of starting a process would lose that process."""
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process if it has not ended, and whatever it has started and left."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(FAREWELL_SECONDS)
    _signal(process, signal.SIGKILL)
    process.wait(FAREWELL_SECONDS)


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to the session that a process leads, if any of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
