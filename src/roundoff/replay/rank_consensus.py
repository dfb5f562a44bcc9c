"""Lets ranks replay steps together: none begins before all are ready, and none enters a collective that another skips.

Ranks meet at counters in the store of their process group, not in collectives: the training's own communication is not
disturbed, and no rank waits for ever for one that died.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from roundoff.files import make_folder, read_bytes
from roundoff.torch_private import DispatchMode, completed_work, default_store, process_group_of

_MAX_WAIT_SECONDS = 20.0
_MAX_PAUSE_SECONDS = 0.02
_GIVEN_UP = -1_000_000
_BETWEEN_TWO = {"send": 2, "recv_": 2}
"""Collectives of two ranks, with the place of the argument that says who the other one is."""


def num_ranks() -> int:
    """Return the size of the default process group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class RanksApart(RuntimeError):
    """A replay was abandoned, because a rank no longer takes part in it."""


class RankConsensus:
    """What the ranks of one run decide together; once one of them cannot take part any more, none replays again.

    Args:
        folder: of the run; its name keeps the questions of one run apart from those of another in the same process.
    """

    def __init__(self, folder: Path) -> None:
        self.lost: str | None = None
        """Why the ranks do not replay together any more, or None."""
        self._prefix = f"roundoff/{folder.name}"
        self._most = 1

    @property
    def several(self) -> bool:
        """Whether several ranks train together, or did until the script ended its process group."""
        self._most = max(self._most, num_ranks())
        return self._most > 1

    def exchange(self, what: str, value: str) -> list[str] | None:
        """Return the values that all ranks passed for the question `what`, by rank; None if one did not arrive."""
        if not self.several:
            return [value]
        store = self._store()
        if store is None or self.lost is not None:
            return None
        key, ranks = f"{self._prefix}/{what}", range(num_ranks())
        store.set(f"{key}/{dist.get_rank()}", value)
        if not self.meet(what, num=len(ranks)):
            return None
        return [store.get(f"{key}/{rank}").decode() for rank in ranks]

    def all_agree(self, what: str, value: str) -> bool:
        """Return whether every rank arrived with the same value."""
        values = self.exchange(what, value)
        return values is not None and set(values) == {value}

    def lose(self, why: str) -> None:
        """Inform the other ranks that this one will not replay any more; this neither waits nor raises."""
        if self.lost is None:
            self.lost = why
            with contextlib.suppress(Exception):  # the rank that holds the store may have died
                store = self._store()
                if store is not None:
                    store.set(f"{self._prefix}/why-lost", why)
                    store.add(f"{self._prefix}/lost", 1)

    def meet(self, what: str, *, num: int) -> bool:
        """Wait until `num` ranks have come to the same place, and return whether all did; the same answer on each."""
        store = self._store()
        if store is None or self.lost is not None:
            return False
        key = f"{self._prefix}/{what}"
        here = int(store.add(key, 1))
        deadline, pause = time.monotonic() + _MAX_WAIT_SECONDS, 0.0005
        why = None
        while 0 < here < num and why is None:
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            here, why = int(store.add(key, 0)), self._why_lost(store, deadline)
        if 0 < here < num:
            # `add` is atomic and returns the count: if the last rank arrived meanwhile, it saw all ranks and continues.
            here = int(store.add(key, _GIVEN_UP)) - _GIVEN_UP
        if here != num:
            self.lose(why or self._why_lost(store, deadline) or "another rank gave up waiting")
        return here == num

    def gate(self, what: str) -> CollectiveGate | None:
        """Return the mode in which a step is replayed by several ranks; None for one."""
        return CollectiveGate(self, what) if self.several else None

    def _why_lost(self, store: Any, deadline: float) -> str | None:
        if int(store.add(f"{self._prefix}/lost", 0)):
            return str(store.get(f"{self._prefix}/why-lost").decode())
        return f"a rank did not arrive within {_MAX_WAIT_SECONDS:.0f} s" if time.monotonic() > deadline else None

    def _store(self) -> Any:
        try:
            # Private, but the only way to the store of a process group that the user's script created.
            return default_store()
        except (RuntimeError, ValueError):
            return None


class CollectiveGate(DispatchMode):
    """Lets a replay enter a collective only if all ranks of its group have come to it.

    A rank may leave a replay at any op: its memory is full, or the user's code raises there and not on other ranks.
    The others then run theirs to the end without communication (the state of a DistributedDataParallel does not survive
    an exception in backward) and drop the result. So no collective of a replay is ever paired with one of the training.
    """

    def __init__(self, ranks: RankConsensus, what: str) -> None:
        super().__init__()
        self._ranks = ranks
        self._what = what
        self._counts: Counter[str] = Counter()

    def check(self) -> None:
        """Raise if a rank has left the replay: what it computed since then is meaningless."""
        if self._ranks.lost is not None:
            raise RanksApart(self._ranks.lost)

    def leave(self, error: BaseException) -> None:
        """Tell the other ranks that this one has left the replay."""
        if not isinstance(error, RanksApart):
            self._ranks.lose(f"rank {dist.get_rank()} could not replay a step ({type(error).__name__}: {error})")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an op; before a collective, wait for the other ranks."""
        group = process_group_of(func, args)
        if group is None or self._all_come(func, group, args):
            return func(*args, **(kwargs or {}))
        if func.namespace != "c10d":
            self.check()  # a functional collective: nothing of it outlives an exception
        return completed_work(func, args)

    def _all_come(self, func: Any, group: Any, args: Sequence[Any]) -> bool:
        name = str(func).split(".")[1]
        members = dist.get_process_group_ranks(group)
        if name in _BETWEEN_TWO:
            ends = (dist.get_group_rank(group, dist.get_rank()), args[_BETWEEN_TWO[name]])
            place = "-".join(map(str, ends if name == "send" else ends[::-1]))
        else:
            place = ""
        key = f"{self._what}/{group.group_name}/{place}"
        self._counts[key] += 1
        num = 2 if place else len(members)
        try:
            return self._ranks.meet(f"{key}/{self._counts[key]}", num=num)
        except Exception as error:  # the store is gone, and with it the rank that held it
            self.leave(error)
            return False


class ReplayRequests:
    """Lets a rank ask the others to replay a step with it, by small files in the run folder that all share."""

    def __init__(self, folder: Path) -> None:
        self._prefix = str(folder / "replay" / "wanted-")

    def ask(self, step: int, *, at: int) -> None:
        """Ask for a replay of `step` when step `at` has ended."""
        path = self._path(at)
        make_folder(path.parent)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        os.write(descriptor, b"%d" % step)
        os.close(descriptor)

    def at(self, step: int) -> int | None:
        """Return the step to replay when `step` has ended, or None; about 2 us if there is none."""
        if not os.path.exists(f"{self._prefix}{step}"):
            return None
        try:
            return int(read_bytes(self._path(step), max_bytes=20))
        except (OSError, ValueError):
            return None

    def _path(self, step: int) -> Path:
        return Path(f"{self._prefix}{step}")
