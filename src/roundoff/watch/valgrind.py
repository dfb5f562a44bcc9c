"""Runs a script under valgrind's memcheck, which sees every access to memory and all that is never freed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from roundoff.errors import ScriptError


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
