"""Makes calls on a Ray cluster; on its machine each has a fresh process, just as here."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from roundoff.experiments.pool import ProcessPool
from roundoff.experiments.ray_cluster import connected_to_ray
from roundoff.experiments.task import Answer, error_in_one_line

_CANCEL_SECONDS = 10.0
"""How long calls that were cancelled may take to end."""


class RayWorkers:
    """Workers that are machines of a Ray cluster, each call asking for one CPU and waiting until there is one.

    The machines have roundoff installed and share the folder that this process works in: what a task reads and writes,
    its log included, is where it would be if it ran here. Connects when it is made, unless this process is connected.
    """

    def __init__(self) -> None:
        self._connection = ExitStack()
        self._ray = self._connection.enter_context(connected_to_ray())
        # Ray's own retries are off: ours are counted, and the same everywhere.
        self._remote_call = self._ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(_call_on_machine)
        self._running: dict[Any, int] = {}
        self._num_started = 0

    def start(self, packed: bytes, *, log: Path | None) -> int:
        """Have a pickled call and its argument called in a fresh process; return a number for this try."""
        number = self._num_started
        self._num_started += 1
        self._running[self._remote_call.remote(packed, log, Path.cwd())] = number
        return number

    def next_answer(self) -> tuple[int, Answer]:
        """Wait until a try ends; return its number and how it ended."""
        (reference,), _ = self._ray.wait(list(self._running), num_returns=1)
        number = self._running.pop(reference)
        try:
            answer: Answer = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            return number, Answer(failure=error_in_one_line(error.cause))
        except self._ray.exceptions.RayError as error:
            return number, Answer(failure=f"its machine or worker was lost: {type(error).__name__}", has_died=True)
        return number, answer

    def close(self) -> None:
        """End what is still running, and the connection if it is ours."""
        try:
            for reference in self._running:
                self._ray.cancel(reference, force=True)
            if self._running:
                self._ray.wait(list(self._running), num_returns=len(self._running), timeout=_CANCEL_SECONDS)
        finally:
            self._running.clear()
            self._connection.close()


def _call_on_machine(packed: bytes, log: Path | None, folder: Path) -> Answer:
    """Make a call in a fresh process of the machine this runs on, in the same folder as there."""
    try:
        os.chdir(folder)
    except OSError:
        return Answer(failure=f"machine '{socket.gethostname()}' does not have the folder '{folder}'")
    with closing(ProcessPool()) as pool:
        pool.start(packed, log=log)
        return pool.next_answer()[1]
