"""How long something takes by itself: what it waits for a processor, because others use the machine, does not count."""

from __future__ import annotations

import time

_SCHEDULE = "/proc/thread-self/schedstat"


def own_seconds() -> float:
    """Return a clock that stops while this thread waits for a processor; it goes on while it waits for a device.

    It takes about 10 us. Where the system does not report such waits, it is the CPU time of the process.
    """
    try:
        with open(_SCHEDULE, "rb") as file:
            _, waited, _ = file.read().split()
        return time.perf_counter() - int(waited) / 1e9
    except (OSError, ValueError):
        return time.process_time()
