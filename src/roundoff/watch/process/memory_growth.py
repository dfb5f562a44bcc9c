"""Follows the memory of the process, and if it grows steadily, finds what holds it."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundoff.runs import GrownObject, GrownTensors, MemoryLook, RunWriter
from roundoff.torch_private import hidden_from_modes
from roundoff.watch.process.variables import NamedObject, growing_line, name_from_referrers, named_objects, user_frames

MIB = 2**20
WARM_UP_STEPS = 20
"""Until then allocators fill their caches, and optimizers create their state."""
MAX_SAMPLES = 128
MIN_GROWTH = 16 * MIB
MIN_GROWTH_PER_STEP = 2048
"""Bytes; less than this per step is a list of numbers, not a leak."""
MAX_LOOKS = 5
_FREE_LOOKS = 2
"""The second shows what has grown since the first; later ones only show whether it keeps growing."""
_LOOK_SHARE = 0.01
_FREE_CHECKS = 2
_MIN_CHECKED_STEPS = 40
"""What grew is checked again after at least this many steps, and at least as many as there were before."""
_MIN_SHARE_IN_USE = 0.25
"""At least this share of a growth that nothing in Python explains must be in use at the end, and not free."""
STEPS_BETWEEN_LOOKS = 8
"""What grows by one entry per step is noticeable only after a few steps."""
_NUM_SEGMENTS = 8
_MAX_KEEPERS = 5
_MIN_LENGTH = 16
_MAX_NODES = 20_000
_CONTAINERS = (list, dict, deque, set)
_TENSORS = (Tensor, torch.nn.Parameter)


class MemoryFollower:
    """Reads the resident memory once a step, in about 3 us, and looks closer only if it grows steadily.

    A closer look takes about 0.2 s, and longer where there are millions of objects; there are at most five, each after
    twice the growth of the previous one, and from the third on only as many as the share of the time allows. Results
    are written into the run; the diagnosis decides whether they are a fault. Does nothing where the system does not
    report the memory of a process.

    Args:
        writer: of the run.
        model_bytes: the size of the model, which growth is measured against.
        own_bytes: returns what the watch holds at the moment; it does not count as growth.
        release: lets go of all copies of the watch.
    """

    def __init__(
        self,
        writer: RunWriter,
        *,
        model_bytes: int = 0,
        own_bytes: Callable[[], int] = lambda: 0,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._writer = writer
        self._release = release
        self._without_ours: tuple[int, int] | None = None
        """The step of the first sample, and the memory then without anything of the watch: growth counts from here."""
        self._own_bytes = own_bytes
        self._file = _open_statm()
        self._page_bytes = os.sysconf("SC_PAGE_SIZE") if self._file is not None else 0
        self._least_growth = max(MIN_GROWTH, model_bytes // 10)
        self._samples: list[tuple[int, int]] = []
        self._stride = 1
        self._until_sample = WARM_UP_STEPS
        self._mark: int | None = None
        self._num_looks = 0
        self._look_seconds = 0.0
        self._began = time.perf_counter()
        self._next_look = 0
        self._before: tuple[int, Census] | None = None
        self._start: tuple[int, int] | None = None
        self._has_found_holders = False
        self._fills_buffer = False
        """Whether the last growth was that of a container with a limit."""
        self._has_ended = False
        """Whether nothing that can be counted has grown since the last look."""
        self._next_check: int | None = None
        self._num_checks = 0

    def step_closed(self, step: int) -> None:
        """Take a sample now and then, and look closer if memory has grown steadily since the last look."""
        self._until_sample -= 1
        if self._until_sample > 0 or self._file is None:
            return
        self._until_sample = self._stride
        if self._without_ours is None:
            self._without_ours = (step, self._read_without_ours())
        resident = self._resident()
        self._keep(step, resident)
        if self._mark is None:
            self._mark = resident + self._least_growth
        elif resident > self._mark and step >= self._next_look and self._can_look():
            began = time.perf_counter()
            self._look(step, resident, sys._getframe(1))
            self._look_seconds += time.perf_counter() - began
        elif self._next_check is not None and step >= self._next_check and self._can_check():
            began = time.perf_counter()
            self._check(step, sys._getframe(1))
            self._look_seconds += time.perf_counter() - began

    def _can_look(self) -> bool:
        if self._num_looks < _FREE_LOOKS:
            return True
        allowed = _LOOK_SHARE * (time.perf_counter() - self._began)
        return self._num_looks < MAX_LOOKS and self._look_seconds <= allowed

    def _can_check(self) -> bool:
        allowed = _LOOK_SHARE * (time.perf_counter() - self._began)
        return self._num_checks < _FREE_CHECKS or self._look_seconds <= allowed

    def _check(self, step: int, frame: FrameType | None) -> None:
        """Check whether what grew still grows: a full buffer stays as it is, even if the allocator takes more."""
        assert self._before is not None
        since, before = self._before
        num_steps = step - since
        variables = {named.name: named.value for named in named_objects(user_frames(frame))}
        least = max(2, num_steps // 16)  # it may grow in some steps only
        census, grown = take_census(variables, before=before, least=least)
        tensors = _more_tensors(before, census, num_steps=num_steps, least=least)
        self._has_ended = not tensors and not _heaviest(grown, num_steps)
        self._before = (step, census)
        self._next_check = step + num_steps
        self._num_checks += 1

    def close(self) -> None:
        """Write the memory of the last sample, if memory ever grew, and whether it was still growing."""
        if self._start is not None and self._file is not None and self._samples:
            step, resident = self._samples[-1]
            goes_on = not self._has_ended and not levels_off(self._samples)  # as does a buffer or a cache that is full
            if not self._has_found_holders:  # what the allocator keeps for tensors of other sizes looks alike
                in_use = min(resident, self._read_without_ours())
                is_free = in_use - self._start[1] < _MIN_SHARE_IN_USE * (resident - self._start[1])
                goes_on = goes_on and not is_free and not self._fills_buffer
                resident = in_use
            self._write(step, resident, is_last=True, goes_on=goes_on)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _resident(self) -> int:
        """Return the resident memory without what the watch holds; what it has freed may still be resident."""
        return self._read() - self._own_bytes()

    def _read(self) -> int:
        return 0 if self._file is None else int(os.pread(self._file, 64, 0).split()[1]) * self._page_bytes

    def _keep(self, step: int, resident: int) -> None:
        self._samples.append((step, resident))
        if len(self._samples) > MAX_SAMPLES:
            del self._samples[::2]
            self._stride *= 2

    def _look(self, step: int, resident: int, frame: FrameType | None) -> None:
        start = steady_growth(self._samples[len(self._samples) // 2 :])
        if start is None:
            self._mark = resident + self._least_growth // 2
            return
        assert self._without_ours is not None
        first_step, first = self._without_ours
        resident = self._read_without_ours()
        if resident - first < max(MIN_GROWTH_PER_STEP * (step - first_step), self._least_growth // 4):
            self._samples, self._mark, self._stride, self._until_sample = [], None, 1, 1
            return
        if self._start is None:
            self._start = self._without_ours if self._is_steady_from_the_start() else start
        frames = user_frames(frame)
        known = list(named_objects(frames))
        keepers: list[GrownObject] = []
        tensors: list[GrownTensors] = []
        since, before = self._before or (step, None)
        num_steps = step - since
        variables = {named.name: named.value for named in known}
        census, grown = take_census(variables, before=before, least=max(2, num_steps // 4))
        if before is not None:
            limited = [one for one in grown if _has_limit(one[0])]
            grown = [one for one in grown if not _has_limit(one[0])]
            keepers = _grown_variables(before, census, known, frames, num_steps=num_steps)
            keepers += _grown_containers(grown, known, frames, num_steps=num_steps)
            tensors = _more_tensors(before, census, num_steps=num_steps, least=max(2, num_steps // 4))
            in_limited = sum(bytes_of(last_entry(container)) * more for container, more in limited)
            self._fills_buffer = not keepers and 2 * in_limited > max((each.bytes_more for each in tensors), default=0)
            if self._fills_buffer:
                tensors = []
        self._before = (step, census)
        self._write(step, resident, keepers=tuple(keepers), tensors=tuple(tensors))
        self._has_found_holders |= bool(keepers or tensors)
        if keepers or tensors:
            self._has_ended = False
            is_counted = all(keeper.kind != "variable" for keeper in keepers)  # not by the graph of one tensor
            self._next_check = step + max(step - first_step, _MIN_CHECKED_STEPS) if is_counted else None
        growth = self._least_growth // 4 if self._num_looks == 0 else resident - first
        self._mark = resident + growth
        self._next_look = step + STEPS_BETWEEN_LOOKS
        self._num_looks += 1

    def _read_without_ours(self) -> int:
        """Let go of everything that the watch holds, and return the resident memory."""
        self._release()
        _return_free_memory()
        return self._read()

    def _is_steady_from_the_start(self) -> bool:
        return steady_growth(self._samples) is not None

    def _write(self, step: int, resident: int, **what: Any) -> None:
        assert self._start is not None
        start_step, start_bytes = self._start
        look = MemoryLook(step=step, rss_bytes=resident, start_step=start_step, start_bytes=start_bytes, **what)
        self._writer.write(look)


def steady_growth(samples: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the first (step, bytes) of samples that grow throughout and do not level off; None for others.

    What counts is the least of each of eight segments, which peaks do not raise.
    """
    if len(samples) < 2 * _NUM_SEGMENTS:
        return None
    floors = _floors(samples)
    rises = [after - before for before, after in itertools.pairwise(floors)]
    total = floors[-1] - floors[0]
    num_steps = samples[-1][0] - samples[0][0]
    if total < MIN_GROWTH_PER_STEP * num_steps or sum(rise > 0 for rise in rises) < len(rises) - 1:
        return None
    late = floors[-1] - floors[_NUM_SEGMENTS // 2]
    return samples[0] if late > total / 4 else None


def levels_off(samples: list[tuple[int, int]]) -> bool:
    """Return whether memory grew in the last quarter of the samples at less than a quarter of its rate before."""
    if len(samples) < 2 * _NUM_SEGMENTS:
        return False
    floors = _floors(samples)
    late = len(floors) // 4
    return (floors[-1] - floors[-1 - late]) * 4 < (floors[-1 - late] - floors[0]) * late / (len(floors) - 1 - late)


def _floors(samples: list[tuple[int, int]]) -> list[int]:
    """Return the least memory of each of eight segments."""
    bounds = [len(samples) * i // _NUM_SEGMENTS for i in range(_NUM_SEGMENTS + 1)]
    return [min(resident for _, resident in samples[a:b]) for a, b in itertools.pairwise(bounds)]


def _has_limit(container: Any) -> bool:
    return isinstance(container, deque) and container.maxlen is not None


def _grown_variables(
    before: Census, now: Census, known: list[NamedObject], frames: list[FrameType], *, num_steps: int
) -> list[GrownObject]:
    """Describe the variables whose graph has more nodes with every step."""
    found: list[GrownObject] = []
    for name, size in now.graph_sizes.items():
        more = size - before.graph_sizes.get(name, size)
        if more >= num_steps:
            named = next(named for named in known if named.name == name)
            source = growing_line(named, frames)
            found.append(
                GrownObject(name=name, source=source, kind="variable", num=size, num_more=more, has_graph=True)
            )
    return found


def _grown_containers(
    grown: list[tuple[Any, int]], known: list[NamedObject], frames: list[FrameType], *, num_steps: int
) -> list[GrownObject]:
    """Describe the containers that grew, those with graphs first, then by size."""
    names = {id(named.value): named for named in known}
    found: list[GrownObject] = []
    for container, more, entry in _heaviest(grown, num_steps):
        named = names.get(id(container)) or name_from_referrers(container)
        if named is not None:
            found.append(
                GrownObject(
                    name=named.name,
                    source=growing_line(named, frames),
                    kind=type(container).__name__,
                    num=len(container),
                    num_more=more,
                    has_graph=has_graph(entry),
                    bytes_more=bytes_of(entry) * more,
                    item=describe_value(entry),
                )
            )
    return found


def _heaviest(grown: list[tuple[Any, int]], num_steps: int) -> list[tuple[Any, int, Any]]:
    """Return (container, number of new entries, last entry) of the few largest: finding their names is expensive."""
    weighed = [(container, more, last_entry(container)) for container, more in grown]
    worth = [
        (container, more, entry)
        for container, more, entry in weighed
        if has_graph(entry) or bytes_of(entry) * more >= MIN_GROWTH_PER_STEP * num_steps
    ]
    worth.sort(key=lambda grown: (not has_graph(grown[2]), -bytes_of(grown[2]) * grown[1]))
    return worth[:_MAX_KEEPERS]


def _more_tensors(before: Census, now: Census, *, num_steps: int, least: int) -> list[GrownTensors]:
    found: list[GrownTensors] = []
    for item, num in now.num_tensors.items():
        more = num - before.num_tensors[item]
        grown = now.tensor_bytes[item] - before.tensor_bytes[item]
        if more >= least and grown >= MIN_GROWTH_PER_STEP * num_steps:
            found.append(GrownTensors(item=item, num=num, num_more=more, bytes_more=grown))
    return sorted(found, key=lambda tensors: -tensors.bytes_more)[:_MAX_KEEPERS]


def _return_free_memory() -> None:
    """Have the allocator return what is free, where it can: what stays resident is in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _open_statm() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Census:
    """The containers, tensors and graphs of the process at one moment; containers by id, valid while they live."""

    lengths: dict[int, int]
    num_tensors: Counter[str]
    tensor_bytes: Counter[str]
    graph_sizes: dict[str, int]
    """The number of autograd nodes that each variable keeps alive."""


def take_census(
    variables: Mapping[str, Any], *, before: Census | None = None, least: int = 2
) -> tuple[Census, list[tuple[Any, int]]]:
    """Count containers, tensors and graphs; takes about 0.2 s.

    Returns the census, and the containers that have at least `least` entries more than before, with that number.

    Args:
        variables: the variables of the training's own code, by name.
        before: an earlier census.
        least: the number of new entries that counts as growth.
    """
    lengths: dict[int, int] = {}
    grown: list[tuple[Any, int]] = []
    num_tensors: Counter[str] = Counter()
    tensor_bytes: Counter[str] = Counter()
    earlier = {} if before is None else before.lengths
    with hidden_from_modes():
        for thing in gc.get_objects():
            kind = type(thing)
            if kind in _CONTAINERS:
                length = len(thing)
                if length >= _MIN_LENGTH and thing is not earlier:
                    lengths[id(thing)] = length
                    if before is not None and length - earlier.get(id(thing), 0) >= least:
                        grown.append((thing, length - earlier.get(id(thing), 0)))
            elif kind in _TENSORS:
                name = describe_value(thing)
                num_tensors[name] += 1
                tensor_bytes[name] += bytes_of(thing)
        graphs = {name: graph_size(value) for name, value in variables.items() if has_graph(value, depth=0)}
    return Census(lengths, num_tensors, tensor_bytes, graphs), grown


def last_entry(container: Any) -> Any:
    """Return the entry that was added last, if the container keeps an order."""
    if isinstance(container, dict):
        return next(reversed(container.values()), None)
    return next(iter(container), None) if isinstance(container, set) else container[-1]


def has_graph(value: Any, *, depth: int = 2) -> bool:
    """Return whether a value is or contains a tensor with an autograd graph."""
    if type(value) in _TENSORS:
        return value.grad_fn is not None
    if depth and isinstance(value, (list, tuple)):
        return any(has_graph(item, depth=depth - 1) for item in value[:8])
    if depth and isinstance(value, dict):
        return any(has_graph(item, depth=depth - 1) for item in list(value.values())[:8])
    return False


def graph_size(x: Tensor) -> int:
    """Count the nodes of the autograd graph of a tensor, up to a limit."""
    seen: set[Any] = set()
    waiting: list[Any] = [x.grad_fn]
    while waiting and len(seen) < _MAX_NODES:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return len(seen)


def bytes_of(value: Any, *, depth: int = 2) -> int:
    """Estimate the size of a value: tensors, arrays, bytes and text exactly, containers from their first entries."""
    if type(value) in _TENSORS:
        return int(value.numel() * value.element_size())
    if isinstance(value, np.ndarray):
        return value.nbytes
    if depth and isinstance(value, (list, tuple, dict)) and value:
        entries = list(value.values() if isinstance(value, dict) else value[:8])[:8]
        return sum(bytes_of(entry, depth=depth - 1) for entry in entries) * len(value) // len(entries)
    return sys.getsizeof(value)


def describe_value(value: Any, *, depth: int = 1) -> str:
    """Describe the kind of a value: `float32 64x10 tensor`, `tuple with float32 64x10 tensor`."""
    if type(value) in _TENSORS:
        return f"{str(value.dtype).removeprefix('torch.')} {_shape(value)} tensor"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {_shape(value)} array"
    if depth and isinstance(value, (list, tuple, dict)) and value:
        entries = list(value.values()) if isinstance(value, dict) else list(value[:8])
        return f"{type(value).__name__} with {describe_value(max(entries, key=bytes_of), depth=depth - 1)}"
    return type(value).__name__


def _shape(value: Any) -> str:
    return "x".join(map(str, value.shape)) or "scalar"
