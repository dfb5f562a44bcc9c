"""Runs a function in a forked child of the tests: what it raises, how it dies, and how much memory it takes at most."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ForkResult:
    """How the child ended."""

    status: int
    """0, an exit code, or minus the number of the signal that killed it."""
    value: Any
    """What the function returned, or the exception that it raised; None if the child was killed."""
    grown_bytes: int
    """Peak of its memory above what it had at the fork."""


def run_forked(function: Callable[[], Any]) -> ForkResult:
    """Call the function in a child process that has everything imported already."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_child(function, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    value, grown = pickle.loads(content) if content else (None, 0)
    return ForkResult(os.waitstatus_to_exitcode(status), value, grown)


def _run_child(function: Callable[[], Any], writing: int) -> None:
    code = 0
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        before = _peak_bytes()
        try:
            value: Any = function()
        except BaseException as error:
            value, code = error, 1
        try:
            content = pickle.dumps((value, _peak_bytes() - before))
        except Exception:
            content = pickle.dumps((repr(value), _peak_bytes() - before))
        os.write(writing, content)
    except BaseException:
        traceback.print_exc()
        code = 70
    finally:
        os._exit(code)


def _peak_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
