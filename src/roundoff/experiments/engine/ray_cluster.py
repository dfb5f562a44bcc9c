"""Runs tasks on a Ray cluster: an existing one, or one on this machine that ends with the connection."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from roundoff.errors import ClusterError, first_line
from roundoff.experiments.engine.process_pool import ProcessPool, WorkerReply, error_in_one_line

_CONNECT_SECONDS = 10.0


@contextmanager
def connected_to_ray() -> Iterator[ModuleType]:
    """Connect to a Ray cluster inside the block, without its log output; yields the module `ray`.

    This is the cluster that this process is already connected to (it stays connected), the one at `RAY_ADDRESS`, the
    one that `ray start` started on this machine, or else a new one on this machine, which ends with the block.

    Raises:
        ClusterError: Ray is not installed, or the cluster does not answer.
    """
    ray = _import_ray()
    if ray.is_initialized():
        yield ray
        return
    with ExitStack() as stack:
        stack.enter_context(_restoring_sigterm())
        stack.enter_context(_silencing_ray(ray))  # also while it shuts down
        _connect(ray)
        stack.callback(ray.shutdown)
        yield ray


def _import_ray() -> ModuleType:
    # Without it Ray hides accelerators from tasks that do not request one.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ClusterError.explain(
            "Ray is not installed.", why="--on ray needs it.", fix="pip install 'roundoff[cluster]'"
        ) from error
    return ray


def _connect(ray: ModuleType) -> None:
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        _check_reachable(address)
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError) as error:  # a refused connection is an OSError
        where = f" at RAY_ADDRESS='{address}'" if address else ""
        raise ClusterError.explain(
            f"The Ray cluster{where} cannot be reached.",
            why=first_line(error),
            fix="unset RAY_ADDRESS to use this machine." if address else "run `ray stop`, then try again.",
        ) from error


def _check_reachable(address: str) -> None:
    """Raise an `OSError` if nothing listens at `[ray://]host:port`; Ray itself would retry for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


@contextmanager
def _restoring_sigterm() -> Iterator[None]:
    """Restore the SIGTERM handler afterwards: Ray replaces it when it connects."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # Ray replaces it only there
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _silencing_ray(ray: ModuleType) -> Iterator[None]:
    """Keep Ray from printing to stdout, which is for results, that a worker died: outcomes say that."""
    module = ray._private.worker  # no option of Ray turns these lines off
    printing = module.print_to_stdstream
    module.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        module.print_to_stdstream = printing


_CANCEL_SECONDS = 10.0
"""How long cancelled calls may take to end."""


class RayWorkers:
    """Workers that are machines of a Ray cluster; each call requests one CPU and waits until one is free.

    The machines must have roundoff installed and share the working directory of this process, so that a task reads and
    writes the same files (its log too) as on this machine. Connects when constructed, unless already connected.
    """

    def __init__(self) -> None:
        self._connection = ExitStack()
        self._ray = self._connection.enter_context(connected_to_ray())
        # Ray's own retries are off: `run_tasks` counts retries, in the same way for every backend.
        self._remote_call = self._ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(_call_on_machine)
        self._running: dict[Any, int] = {}
        self._num_started = 0

    def start(self, packed: bytes, *, log: Path | None) -> int:
        """Run a pickled call in a new process; return the number of this attempt."""
        number = self._num_started
        self._num_started += 1
        self._running[self._remote_call.remote(packed, log, Path.cwd())] = number
        return number

    def next_answer(self) -> tuple[int, WorkerReply]:
        """Wait until an attempt ends; return its number and how it ended."""
        (reference,), _ = self._ray.wait(list(self._running), num_returns=1)
        number = self._running.pop(reference)
        try:
            answer: WorkerReply = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            return number, WorkerReply(failure=error_in_one_line(error.cause))
        except self._ray.exceptions.RayError as error:
            return number, WorkerReply(failure=f"its machine or worker was lost: {type(error).__name__}", has_died=True)
        return number, answer

    def close(self) -> None:
        """Stop what is still running, and disconnect if this object connected."""
        try:
            for reference in self._running:
                self._ray.cancel(reference, force=True)
            if self._running:
                self._ray.wait(list(self._running), num_returns=len(self._running), timeout=_CANCEL_SECONDS)
        finally:
            self._running.clear()
            self._connection.close()


def _call_on_machine(packed: bytes, log: Path | None, folder: Path) -> WorkerReply:
    """Run a call in a new process on the Ray machine, in the working directory of the caller."""
    try:
        os.chdir(folder)
    except OSError:
        return WorkerReply(failure=f"machine '{socket.gethostname()}' does not have the folder '{folder}'")
    with closing(ProcessPool()) as pool:
        pool.start(packed, log=log)
        return pool.next_answer()[1]
