"""Lets ranks agree to replay a step together: none begins before all are ready, none waits for one that died."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from roundoff.record.torch_private import default_store

_MAX_WAIT_SECONDS = 20.0
_GIVEN_UP = -1_000_000


def num_ranks() -> int:
    """Return the size of the default process group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def exchange(what: str, value: str) -> list[str] | None:
    """Return the values that all ranks passed for the question `what`, by rank; None if one did not arrive in time.

    Ranks meet at a counter in the store of the process group, not in a collective: the training's own communication
    is not disturbed, and a rank that has died is given up after a while.
    """
    if num_ranks() == 1:
        return [value]
    store = _store()
    if store is None:
        return None
    key = f"roundoff/{what}"
    store.set(f"{key}/{dist.get_rank()}", value)
    here = int(store.add(key, 1))
    deadline = time.monotonic() + _MAX_WAIT_SECONDS
    while 0 < here < num_ranks() and time.monotonic() < deadline:
        time.sleep(0.002)
        here = int(store.add(key, 0))
    if 0 < here < num_ranks():
        # `add` is atomic and returns the count: if the last rank arrived meanwhile, it saw all ranks and continues.
        here = int(store.add(key, _GIVEN_UP)) - _GIVEN_UP
    if here != num_ranks():
        return None
    return [store.get(f"{key}/{rank}").decode() for rank in range(num_ranks())]


def all_agree(what: str, value: str) -> bool:
    """Say whether every rank arrived with the same value."""
    values = exchange(what, value)
    return values is not None and set(values) == {value}


class ReplayRequests:
    """Lets a rank ask the others to replay a step with it, by small files in the run folder that all share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ask(self, step: int, *, at: int) -> None:
        """Ask for a replay of `step` when step `at` has ended."""
        path = self._path(at)
        path.parent.mkdir(exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return
        os.write(descriptor, b"%d" % step)
        os.close(descriptor)

    def at(self, step: int) -> int | None:
        """Return the step to replay when `step` has ended, or None; about 2 us if there is none."""
        path = self._path(step)
        if not os.path.exists(path):
            return None
        try:
            return int(path.read_text())
        except ValueError:
            return None

    def _path(self, step: int) -> Path:
        return self._folder / "replay" / f"wanted-{step}"


def _store() -> Any:
    try:
        # Private, but the only way to the store of a process group that the user's script created.
        return default_store()
    except (RuntimeError, ValueError):
        return None
