"""Records a script on some ranks of this machine: one process each, joined by gloo or what the script chooses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO

from roundoff.errors import ScriptError
from roundoff.words import plural

MESH_VARIABLE = "ROUNDOFF_MESH"
"""Tells the script, and run.json, the mesh: `dp=2,tp=2`; every size is 1 on one rank."""
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5.0
_SHOWN_LINES = 20


def fill_in_sizes(words: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
    """Replace the name of each of the mesh's dimensions in braces by its size.

    >>> fill_in_sizes(["train.py", "--tp", "{tp}", "--lr={lr}"], {"tp": 2})
    ['train.py', '--tp', '2', '--lr={lr}']
    """
    filled = list(words)
    for name, size in sizes.items():
        filled = [word.replace(f"{{{name}}}", str(size)) for word in filled]
    return filled


def record_on_ranks(options: Sequence[str], words: Sequence[str], *, num_ranks: int, sizes: Mapping[str, int]) -> None:
    """Run `roundoff record OPTIONS WORDS` on every rank; a `ScriptError` shows what a rank printed before it failed."""
    shared = {
        **os.environ,
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        MESH_VARIABLE: ",".join(f"{name}={size}" for name, size in sizes.items()),
    }
    command = [sys.executable, "-m", "roundoff", "record", *options, *fill_in_sizes(words, sizes)]
    with ExitStack() as opened:
        outputs = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(num_ranks)]
        ranks = [_start(command, shared, rank, output) for rank, output in enumerate(outputs)]
        try:
            failed = _wait(ranks)
        finally:
            _end(ranks)
        if failed is not None:
            outputs[failed].seek(0)
            lines = outputs[failed].read().decode(errors="replace").splitlines()[-_SHOWN_LINES:]
            raise ScriptError.explain(
                f"The script failed on rank {failed} of {plural(num_ranks, 'rank')}.",
                why=f"it exited with {ranks[failed].returncode}; it last printed:\n" + "\n".join(lines),
            )


def _start(command: Sequence[str], shared: Mapping[str, str], rank: int, output: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all ranks, or for the first that fails, which is returned."""
    while True:
        codes = [process.poll() for process in ranks]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None or None not in codes:
            return failed
        time.sleep(_POLL_SECONDS)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs."""
    for process in ranks:
        if process.poll() is None:
            process.terminate()
    for process in ranks:
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
