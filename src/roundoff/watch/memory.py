"""Follows the memory of the process, and where it grows steadily finds what keeps it."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from roundoff.runs import JsonValue, MemoryLook, RunWriter
from roundoff.watch.census import Census, bytes_of, describe, has_graph, last_entry, take_census
from roundoff.watch.growing_line import line_that_grows
from roundoff.watch.variables import Named, name_from_referrers, named_objects, user_frames

MIB = 2**20
WARM_UP_STEPS = 20
"""Allocators fill their caches, optimizers make their state."""
MOST_SAMPLES = 128
LEAST_GROWTH = 16 * MIB
LEAST_PER_STEP = 2048
"""Less than this a step is a list of numbers, not a leak."""
MOST_LOOKS = 5
STEPS_BETWEEN_LOOKS = 8
"""What grows by one entry a step stands out only after a few."""
_NUM_SEGMENTS = 8
_MOST_KEEPERS = 5


class MemoryFollower:
    """Reads the resident memory once a step, about 3 us, and looks closer only where it grows steadily.

    A look costs about 0.2 s, there are at most five, each after twice the growth of the one before. What it finds is
    written into the run; whether that is a fault is for a diagnosis to say. Does nothing where the system does not tell
    the memory of a process.

    Args:
        writer: of the run.
        model_bytes: growth is measured against the size of the model, too.
        own_bytes: says what the watch itself keeps, which is no growth of the training.
    """

    def __init__(self, writer: RunWriter, *, model_bytes: int = 0, own_bytes: Callable[[], int] = lambda: 0) -> None:
        self._writer = writer
        self._own_bytes = own_bytes
        self._most_own_bytes = 0
        self._file = _open_statm()
        self._page_bytes = os.sysconf("SC_PAGE_SIZE") if self._file is not None else 0
        self._least_growth = max(LEAST_GROWTH, model_bytes // 10)
        self._samples: list[tuple[int, int]] = []
        self._stride = 1
        self._until_sample = WARM_UP_STEPS
        self._mark: int | None = None
        self._num_looks = 0
        self._next_look = 0
        self._before: tuple[int, Census] | None = None
        self._start: tuple[int, int] | None = None

    def step_closed(self, step: int) -> None:
        """Take a sample now and then, and look closer if memory has grown steadily since the last time."""
        self._until_sample -= 1
        if self._until_sample > 0 or self._file is None:
            return
        self._until_sample = self._stride
        resident = self._resident()
        self._keep(step, resident)
        if self._mark is None:
            self._mark = resident + self._least_growth
        elif resident > self._mark and step >= self._next_look and self._num_looks < MOST_LOOKS:
            self._look(step, resident, sys._getframe(1))

    def close(self) -> None:
        """Note what the process held when it was last seen training, if it ever grew."""
        if self._start is not None and self._file is not None:
            self._write(*self._samples[-1], is_last=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _resident(self) -> int:
        """Return what the process holds beyond the most that the watch has ever kept: memory that is freed stays."""
        assert self._file is not None
        self._most_own_bytes = max(self._most_own_bytes, self._own_bytes())
        return int(os.pread(self._file, 64, 0).split()[1]) * self._page_bytes - self._most_own_bytes

    def _keep(self, step: int, resident: int) -> None:
        self._samples.append((step, resident))
        if len(self._samples) > MOST_SAMPLES:
            del self._samples[::2]
            self._stride *= 2

    def _look(self, step: int, resident: int, frame: FrameType | None) -> None:
        start = steady_growth(self._samples[len(self._samples) // 2 :])
        if start is None:
            self._mark = resident + self._least_growth // 2
            return
        if self._start is None:
            self._start = self._samples[0] if self._is_steady_from_the_start() else start
        frames = user_frames(frame)
        known = list(named_objects(frames))
        keepers: list[JsonValue] = []
        tensors: list[JsonValue] = []
        since, before = self._before or (step, None)
        num_steps = step - since
        variables = {named.name: named.value for named in known}
        census, grown = take_census(variables, before=before, least=max(2, num_steps // 4))
        if before is not None:
            keepers = _grown_variables(before, census, known, frames, num_steps=num_steps)
            keepers += _grown_containers(grown, known, frames, num_steps=num_steps)
            tensors = _more_tensors(before, census, num_steps=num_steps)
        self._before = (step, census)
        self._write(step, resident, keepers=tuple(keepers), tensors=tuple(tensors))
        growth = self._least_growth // 4 if self._num_looks == 0 else resident - self._start[1]
        self._mark = resident + growth
        self._next_look = step + STEPS_BETWEEN_LOOKS
        self._num_looks += 1

    def _is_steady_from_the_start(self) -> bool:
        return steady_growth(self._samples) is not None

    def _write(self, step: int, resident: int, **what: Any) -> None:
        assert self._start is not None
        start_step, start_bytes = self._start
        look = MemoryLook(step=step, rss_bytes=resident, start_step=start_step, start_bytes=start_bytes, **what)
        self._writer.write_memory(look)


def steady_growth(samples: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the first (step, bytes) of samples that grow all the way and do not level off; None for others.

    What counts is the least of each of eight segments, which peaks do not raise.
    """
    if len(samples) < 2 * _NUM_SEGMENTS:
        return None
    bounds = [len(samples) * i // _NUM_SEGMENTS for i in range(_NUM_SEGMENTS + 1)]
    floors = [min(resident for _, resident in samples[a:b]) for a, b in itertools.pairwise(bounds)]
    rises = [after - before for before, after in itertools.pairwise(floors)]
    total = floors[-1] - floors[0]
    num_steps = samples[-1][0] - samples[0][0]
    if total < LEAST_PER_STEP * num_steps or sum(rise > 0 for rise in rises) < len(rises) - 1:
        return None
    late = floors[-1] - floors[_NUM_SEGMENTS // 2]
    return samples[0] if late > total / 4 else None


def _grown_variables(
    before: Census, now: Census, known: list[Named], frames: list[FrameType], *, num_steps: int
) -> list[JsonValue]:
    """Describe the variables whose graph has more nodes with every step."""
    found: list[JsonValue] = []
    for name, size in now.graph_sizes.items():
        more = size - before.graph_sizes.get(name, size)
        if more >= num_steps:
            named = next(named for named in known if named.name == name)
            found.append(_described(named, frames, kind="variable", num=size, num_more=more, has_graph=True))
    return found


def _grown_containers(
    grown: list[tuple[Any, int]], known: list[Named], frames: list[FrameType], *, num_steps: int
) -> list[JsonValue]:
    """Describe the containers that grew, those with graphs first, then by size."""
    names = {id(named.value): named for named in known}
    found: list[JsonValue] = []
    for container, more, entry in _heaviest(grown, num_steps):
        named = names.get(id(container)) or name_from_referrers(container)
        if named is not None:
            found.append(
                _described(named, frames, kind=type(container).__name__, num=len(container), num_more=more,
                           has_graph=has_graph(entry), bytes_more=bytes_of(entry) * more, item=describe(entry))
            )  # fmt: skip
    return found


def _heaviest(grown: list[tuple[Any, int]], num_steps: int) -> list[tuple[Any, int, Any]]:
    """Return (container, how many more, last entry) of those that matter; names are dear, so only a few."""
    weighed = [(container, more, last_entry(container)) for container, more in grown]
    worth = [
        (container, more, entry)
        for container, more, entry in weighed
        if has_graph(entry) or bytes_of(entry) * more >= LEAST_PER_STEP * num_steps
    ]
    worth.sort(key=lambda grown: (not has_graph(grown[2]), -bytes_of(grown[2]) * grown[1]))
    return worth[:_MOST_KEEPERS]


def _described(named: Named, frames: list[FrameType], **facts: JsonValue) -> dict[str, JsonValue]:
    return {"name": named.name, "source": line_that_grows(named, frames), **facts}


def _more_tensors(before: Census, now: Census, *, num_steps: int) -> list[JsonValue]:
    found: list[tuple[int, JsonValue]] = []
    for item, num in now.num_tensors.items():
        more = num - before.num_tensors[item]
        grown = now.tensor_bytes[item] - before.tensor_bytes[item]
        if more >= max(2, num_steps // 4) and grown >= LEAST_PER_STEP * num_steps:
            found.append((grown, {"item": item, "num": num, "num_more": more, "bytes_more": grown}))
    return [fact for _, fact in sorted(found, key=lambda pair: -pair[0])[:_MOST_KEEPERS]]


def _open_statm() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
