"""Slow modes that locate errors in native code: valgrind's memcheck, and devices that run one op at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from roundoff.errors import ScriptError

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
"""What each vendor's libraries read when they are loaded; other libraries ignore it."""


def run_memcheck(command: Sequence[str], *, xml: Path) -> int:
    """Run `python ...` under memcheck and return its exit code; memcheck writes its errors to `xml`.

    Memcheck checks every memory access and lists what is never freed. It takes 20 to 50 times as long; loading torch
    alone takes a minute or two. The script is not watched meanwhile. `memcheck_findings` in diagnose reads the file.
    """
    # Python's own allocator hides from memcheck what lies inside its arenas.
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "OMP_NUM_THREADS": "1"}
    code = subprocess.run(memcheck_command(command, xml=xml), env=environment).returncode
    return code if code >= 0 else 128 - code  # as a shell reports a signal


def memcheck_command(command: Sequence[str], *, xml: Path) -> list[str]:
    """Return the command line that runs `python ...` under memcheck.

    Memory that is still reachable or only possibly lost is not reported: Python leaves plenty of both at exit.
    Uninitialized values are not tracked: vectorized code reads beyond ends, and tracking takes twice as long.

    Raises:
        ScriptError: valgrind is not installed.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise ScriptError.explain(
            "valgrind is not installed.",
            why="--valgrind runs the script under its memcheck.",
            fix="install it, for example with: apt install valgrind",
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


def set_synchronous(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Make every device run one op at a time, so that an error is raised where it occurs; return the settings.

    They are environment variables, such as `CUDA_LAUNCH_BLOCKING=1`; those that the user has set stay as they are. Call
    it before torch is loaded.

    >>> set_synchronous({"CUDA_LAUNCH_BLOCKING": "0"})[:2]
    ['CUDA_LAUNCH_BLOCKING=0', 'AMD_SERIALIZE_KERNEL=3']
    """
    return [f"{name}={environment.setdefault(name, value)}" for name, value in SWITCHES.items()]
