"""Whether an accelerator has the memory for a replay, as far as it says how much it has."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from roundoff.record.structure import outermost_optimizers
from roundoff.replay.state import Training
from roundoff.replay.swapping import local_part
from roundoff.words import size_text


def free_bytes(device: torch.device) -> int | None:
    """Return how much memory a device has left, with what torch holds there for later use; None if it does not say."""
    queries = (getattr(torch.accelerator, "get_memory_info", None), _of_module(device, "mem_get_info"))
    for query in queries:
        with contextlib.suppress(Exception):  # what a backend that lacks it raises is its own choice
            free, _ = query(device)  # type: ignore[misc]
            return int(free) + max(_statistic("memory_reserved", device) - _statistic("memory_allocated", device), 0)
    return None


def why_no_room(training: Training) -> str | None:
    """Say why the state of a training does not fit onto its devices once more; None if it does, or that is unknown."""
    needed: Counter[torch.device] = Counter()
    for x in training.tensors():
        needed[x.device] += local_part(x).nbytes * (2 if x.requires_grad else 1)  # it gets a gradient
    for optimizer in outermost_optimizers(training.optimizers):
        for state in optimizer.state.values():
            for x in state.values() if isinstance(state, dict) else ():
                if isinstance(x, Tensor):
                    needed[x.device] += local_part(x).nbytes
    for device, num_bytes in needed.items():
        if device.type in ("cpu", "meta") or (free := free_bytes(device)) is None:
            continue
        # What a step needs for itself is what was in use at the peak and is not now.
        of_step = max(_statistic("max_memory_allocated", device) - _statistic("memory_allocated", device), 0)
        if num_bytes + of_step > free:
            return f"a replay takes about {size_text(num_bytes + of_step)} of {device}, and {size_text(free)} are free"
    return None


def _of_module(device: torch.device, name: str) -> Callable[[torch.device], Any] | None:
    """Return a function of what torch knows a device's kind by, such as `torch.cuda`."""
    return getattr(getattr(torch, device.type, None), name, None)


def _statistic(name: str, device: torch.device) -> int:
    with contextlib.suppress(Exception):
        return int(getattr(torch.accelerator, name)(device))
    return 0
