"""The connection to a Ray cluster: one that is there, or one of this machine that ends with the connection."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

from roundoff.errors import ClusterError, first_line

_KNOCK_SECONDS = 10.0


@contextmanager
def connected_to_ray() -> Iterator[ModuleType]:
    """Be connected to a Ray cluster in this block, and quietly; yields the module `ray`.

    That is the cluster which this process is connected to already (and stays connected to), the one at `RAY_ADDRESS`,
    the one that `ray start` began on this machine, or else one that is started here and ended with the block.

    Raises:
        ClusterError: Ray is not installed, or the cluster does not answer.
    """
    ray = _import_ray()
    if ray.is_initialized():
        yield ray
        return
    with ExitStack() as stack:
        stack.enter_context(_sigterm_kept())
        stack.enter_context(_silence(ray))  # also while it shuts down
        _connect(ray)
        stack.callback(ray.shutdown)
        yield ray


def _import_ray() -> ModuleType:
    # Without it Ray hides the accelerators of a machine from tasks that do not ask for one by its number.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ClusterError.explain(
            "Ray is not installed.", why="experiments on a cluster need it.", fix="pip install 'roundoff[cluster]'"
        ) from error
    return ray


def _connect(ray: ModuleType) -> None:
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        _knock(address)
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError) as error:  # a refused connection is an OSError
        where = f" at RAY_ADDRESS='{address}'" if address else ""
        raise ClusterError.explain(
            f"The Ray cluster{where} cannot be reached.",
            why=first_line(error),
            fix="unset RAY_ADDRESS to use this machine." if address else "ray stop, then try again.",
        ) from error


def _knock(address: str) -> None:
    """Raise an `OSError` now if nobody listens at `[ray://]host:port`: Ray would try for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Put back who handles SIGTERM: Ray takes it over when it connects."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # only there it was taken over
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _silence(ray: ModuleType) -> Iterator[None]:
    """Keep Ray from printing to standard output, where answers go, that a worker died: outcomes tell it."""
    module = ray._private.worker
    printing = module.print_to_stdstream
    module.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        module.print_to_stdstream = printing
