"""Runs a script under valgrind's memcheck, which sees every access to memory and all that is never freed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from roundoff.errors import ScriptError

# == Synchronous mode: every device runs one op at a time, so that an error shows where it was made.

SWITCHES = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "AMD_SERIALIZE_KERNEL": "3",  # ROCm waits before and after each kernel
    "AMD_SERIALIZE_COPY": "3",
    "UR_L0_SERIALIZE": "2",  # Intel: one call at a time, and each blocks
    "ASCEND_LAUNCH_BLOCKING": "1",
    "CATCH_ASYNC_DISABLE": "1",  # Cambricon, whose library then logs the ops it runs
    "CNNL_MIN_LOG_LEVEL": "INFO",
    "TORCH_NCCL_BLOCKING_WAIT": "1",
}
"""What each vendor's libraries read when they are loaded; the others ignore it."""


def set_synchronous(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Set the switches of synchronous mode, and return them as they are now: `CUDA_LAUNCH_BLOCKING=1`.

    A switch that the user has set stays as it is. To be called before torch is loaded.

    >>> set_synchronous({"CUDA_LAUNCH_BLOCKING": "0"})[:2]
    ['CUDA_LAUNCH_BLOCKING=0', 'AMD_SERIALIZE_KERNEL=3']
    """
    return [f"{name}={environment.setdefault(name, value)}" for name, value in SWITCHES.items()]


def run_memcheck(command: Sequence[str], *, xml: Path) -> int:
    """Run `python ...` under memcheck and return its exit code; what memcheck saw goes to `xml`.

    It takes 20 to 50 times as long, and loading torch alone a minute or two. The script is not watched meanwhile.
    `memcheck_findings` in diagnose reads the file.
    """
    # Python's own allocator hides from memcheck what lies inside its arenas.
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "OMP_NUM_THREADS": "1"}
    code = subprocess.run(memcheck_command(command, xml=xml), env=environment).returncode
    return code if code >= 0 else 128 - code  # as a shell tells of a signal


def memcheck_command(command: Sequence[str], *, xml: Path) -> list[str]:
    """Return the command line that runs `python ...` under memcheck; a `ScriptError` says so if it is not installed.

    Of memory that is still reachable, or only might be lost, nothing is told: Python leaves plenty of both at its end.
    Values that were never set are not followed: vectorised code reads beyond ends, and halves the speed of following.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise ScriptError.explain(
            "valgrind is not installed.",
            why="--valgrind runs the script under its memcheck.",
            fix="install it: apt install valgrind.",
        )
    return [
        valgrind,
        "--tool=memcheck",
        "--leak-check=full",
        "--show-leak-kinds=definite",
        "--errors-for-leak-kinds=definite",
        "--undef-value-errors=no",
        "--num-callers=40",
        "--child-silent-after-fork=yes",
        "--xml=yes",
        f"--xml-file={str(xml).replace('%', '%%')}",
        sys.executable,
        *command[1:],
    ]
