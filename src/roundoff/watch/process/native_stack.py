"""Native stacks of a process, taken from outside with gdb."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

MAX_SECONDS = 30.0
_MAX_FRAMES = 64


def has_debugger() -> bool:
    """Whether gdb is installed."""
    return shutil.which("gdb") is not None


def write_native_stacks(process: int, path: Path, *, heading: str) -> bool:
    """Append the stacks of all threads of a process to a file, and say whether that worked.

    The process is stopped meanwhile, for a few seconds, and then continues.
    """
    gdb = shutil.which("gdb")
    if gdb is None:
        return False
    environment = {name: value for name, value in os.environ.items() if name not in ("DEBUGINFOD_URLS", "LD_PRELOAD")}
    try:
        answer = subprocess.run(
            [gdb, *_options(), "-p", str(process)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=MAX_SECONDS,
            env=environment,
            preexec_fn=_unblock_signals,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    stacks = _stacks_in(answer.stdout.decode(errors="replace"))
    if not stacks:
        return False
    with path.open("a", encoding="utf-8") as file:
        file.write(f"== {heading}\n{stacks}\n")
    return True


def _unblock_signals() -> None:
    """Unblock in gdb the signals that the waiting parent has blocked."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _options() -> list[str]:
    """Request nothing but stacks: no start-up files, no scripts of the libraries, no symbols from the network.

    Torch has so many symbols that gdb would spend most of its time demangling them; we demangle the few in the stacks.
    """
    before = ("set debuginfod enabled off", "set auto-load off", "set demangle-style none", "set width 0")
    wanted = ("set print frame-arguments presence", f"thread apply all backtrace {_MAX_FRAMES}")
    options = ["-batch", "-nx"]
    for command in before:
        options += ["-iex", command]
    for command in wanted:
        options += ["-ex", command]
    return options


def _stacks_in(text: str) -> str:
    """Drop what gdb prints while it attaches, and demangle the names."""
    lines = [line for line in text.splitlines() if line.startswith(("#", "Thread "))]
    return _demangle("\n".join(lines)) if any(line.startswith("#") for line in lines) else ""


def _demangle(text: str) -> str:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return text
    demangle, free = library.__cxa_demangle, ctypes.CDLL(None).free
    demangle.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def name(match: re.Match[str]) -> str:
        status = ctypes.c_int()
        found = demangle(match[0].encode(), None, None, ctypes.byref(status))
        if not found:
            return match[0]
        written = ctypes.string_at(found).decode(errors="replace")
        free(found)
        return written

    return re.sub(r"\b_Z\w+", name, text)
