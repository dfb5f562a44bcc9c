"""What the process of one task does: make the call, send the answer, and end when whoever wants it is gone."""

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
from multiprocessing.connection import Connection, wait
from pathlib import Path

from roundoff.errors import RoundoffError
from roundoff.experiments.task import error_in_one_line

FAREWELL_SECONDS = 5.0
"""How long a process that was told to end may take before it is killed."""


def make_call(packed: bytes, log: Path | None, writer: Connection) -> None:
    """Be the process of one task: send its pickled value and None, or None and how the call failed."""
    # A group of its own, so that what the task starts (ranks, scripts) can be ended with it.
    os.setpgrp()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if log is not None:
        _redirect_output(log)
    writer.send(_called(packed))


def _called(packed: bytes) -> tuple[bytes | None, str | None]:
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
        return None, f"its value cannot be sent to another process: {error}"


def end_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to a task's process and to all that it started; it may be gone already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _end_with_parent() -> None:
    """Wait until the parent is gone, however it went, and end this process and what it started."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.killpg(0, signal.SIGTERM)
    time.sleep(FAREWELL_SECONDS)
    os.killpg(0, signal.SIGKILL)


def _redirect_output(path: Path) -> None:
    """Send what this process prints to a file, what its libraries print included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
