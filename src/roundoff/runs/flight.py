"""The flight recorder: what a process is doing, in a file that survives its death; layout, writer, reader.

The file is written with system calls, not mapped: a store into a mapped file that someone has cut short kills the
process, and a failed write only ends the notes. Where a parent supervises the process, notes go into memory that both
share, and into the file only now and then; when the child dies or hangs, the parent writes the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from roundoff.errors import RunFolderError
from roundoff.files import NewFile, naming, open_reading, read_bytes, write_all

FLIGHT_VERSION = 2
FLIGHT_MAGIC = int.from_bytes(b"rndflite", "little")

# One word each.
MAGIC_WORD, VERSION_WORD, PID, UNIX_NS, MONOTONIC_NS = range(5)
"""The two clocks are read together when the file is made; records have the monotonic one."""
COUNT, STEP, PHASE, DEPTH, OP, NAMES_USED = range(5, 11)
"""Records complete; step or -1; code of the phase; modules running; op (code * 2, + 1 if done); bytes of names."""

RECENT = 16
NUM_RECENT = 32
"""The records since the last one whose number is a multiple of this; so that a note is one write."""

STACK = RECENT + 2 * NUM_RECENT
MAX_DEPTH = 240
"""The codes of the sites that run, the outermost first; those beyond the depth are counted but not named."""

RING = STACK + MAX_DEPTH
NUM_RECORDS = 4096
WORDS_PER_RECORD = 2
"""When, and what: code + kind * 2**32 + phase's code * 2**40. Record n (from 1) is in slot n % NUM_RECORDS, or in slot
n % NUM_RECENT of the recent ones."""

NAMES_OFFSET = 8 * (RING + NUM_RECORDS * WORDS_PER_RECORD)
NAMES_BYTES = 512 * 1024
"""Each name is its length in two bytes and its UTF-8; its code is its place, counted from 1. Code 0 is no name."""
MAX_NAME_BYTES = 400

TOTAL_BYTES = NAMES_OFFSET + NAMES_BYTES

RecordKind: TypeAlias = Literal["enter", "leave", "step", "phase", "op"]
KINDS: tuple[RecordKind, ...] = ("enter", "leave", "step", "phase", "op")


_BEING_OVERWRITTEN = 64
"""The oldest records of a full ring are left alone: a living process may be writing over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightRecord:
    """One thing that was noted."""

    time: float
    """Seconds since 1970."""
    kind: RecordKind
    name: str
    """The site, phase or op; the step's number."""
    phase: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """What a process was doing when it was last heard of."""

    pid: int
    started: float
    """Seconds since 1970, as all times here."""
    heartbeat: float
    """When it last noted anything."""
    num_records: int
    """How many it has noted; the ring holds the last of them."""
    step: int | None
    phase: str | None
    sites: tuple[str, ...]
    """The modules that were running, the outermost first."""
    op: str | None
    """The last op, where ops were noted."""
    is_op_done: bool
    records: tuple[FlightRecord, ...]
    """The last ones, the oldest first."""

    @property
    def site(self) -> str | None:
        """The innermost module that was running; None outside of any."""
        return self.sites[-1] if self.sites else None


def read_flight(path: Path) -> Flight:
    """Read a flight recorder's file; a `RunFolderError` says what is wrong with it."""
    try:
        data = read_bytes(path, max_bytes=TOTAL_BYTES)
    except OSError as error:
        raise _invalid_flight_error(path, f"{error.strerror}.") from error
    if len(data) != TOTAL_BYTES:
        raise _invalid_flight_error(path, f"it has {len(data)} bytes instead of {TOTAL_BYTES}.")
    words = memoryview(data)[:NAMES_OFFSET].cast("q")
    if words[MAGIC_WORD] != FLIGHT_MAGIC:
        raise _invalid_flight_error(
            path, "it is no flight recorder's file, or was written on a machine of another byte order."
        )
    if words[VERSION_WORD] != FLIGHT_VERSION:
        raise _invalid_flight_error(path, f"its version is {words[VERSION_WORD]}, and {FLIGHT_VERSION} is known.")
    names = _names(data[NAMES_OFFSET:], words[NAMES_USED])
    records = _records(words, names)
    op = words[OP]
    stack = words[STACK : STACK + min(max(words[DEPTH], 0), MAX_DEPTH)]
    started = words[UNIX_NS] / 1e9
    return Flight(
        pid=words[PID],
        started=started,
        heartbeat=records[-1].time if records else started,
        num_records=words[COUNT],
        step=None if words[STEP] < 0 else words[STEP],
        phase=_name(names, words[PHASE]),
        sites=tuple(_name(names, code) or "?" for code in stack),
        op=_name(names, op >> 1),
        is_op_done=bool(op & 1),
        records=records,
    )


def read_heartbeat(path: Path, *, shared: mmap.mmap | None = None) -> int:
    """Return how many records a process has noted so far: it grows as long as the process makes progress.

    Args:
        path: of its file.
        shared: the memory in which it notes what it does, if it does so there.
    """
    if shared is not None and _word(shared, MAGIC_WORD) == FLIGHT_MAGIC:
        return _word(shared, COUNT)
    descriptor = open_reading(path)
    try:
        return int.from_bytes(os.pread(descriptor, 8, 8 * COUNT), "little")
    finally:
        os.close(descriptor)


def save_shared_flight(shared: mmap.mmap, path: Path) -> None:
    """Write what another process has noted into its file, unless that process has let go of it; may raise `OSError`."""
    if _word(shared, MAGIC_WORD) != FLIGHT_MAGIC:
        return
    descriptor = open_reading(path, writes=True)
    try:
        os.pwrite(descriptor, shared[:TOTAL_BYTES], 0)
    finally:
        os.close(descriptor)


def _word(shared: mmap.mmap, place: int) -> int:
    return int.from_bytes(shared[8 * place : 8 * place + 8], sys.byteorder)


def _records(words: memoryview, names: list[str]) -> tuple[FlightRecord, ...]:
    count = words[COUNT]
    offset = words[UNIX_NS] - words[MONOTONIC_NS]
    found = []
    for number in range(max(1, count - NUM_RECORDS + 1 + _BEING_OVERWRITTEN), count + 1):
        is_recent = number >= count // NUM_RECENT * NUM_RECENT
        slot = RECENT + 2 * (number % NUM_RECENT) if is_recent else RING + 2 * (number % NUM_RECORDS)
        when, what = words[slot], words[slot + 1]
        kind = KINDS[min(what >> 32 & 0xFF, len(KINDS) - 1)]
        code = what & 0xFFFFFFFF
        name = str(code) if kind == "step" else _name(names, code) or "?"
        phase = _name(names, what >> 40)
        found.append(FlightRecord(time=(when + offset) / 1e9, kind=kind, name=name, phase=phase))
    return tuple(found)


def _names(data: bytes, used: int) -> list[str]:
    found, place = [], 0
    while place < min(used, NAMES_BYTES):
        length = int.from_bytes(data[place : place + 2], "little")
        found.append(data[place + 2 : place + 2 + length].decode(errors="replace"))
        place += 2 + length
    return found


def _name(names: list[str], code: int) -> str | None:
    return names[code - 1] if 1 <= code <= len(names) else None


def _invalid_flight_error(path: Path, why: str) -> RunFolderError:
    return RunFolderError.explain(f"'{path}' cannot be read.", why=why, fix="take the file from a copy of the run.")


_ENTER, _LEAVE, _STEP, _PHASE, _OP = (kind << 32 for kind in range(len(KINDS)))
_NO_ROOM = "<unnamed>"
_NS_BETWEEN_WRITES = 20_000_000
"""The shared memory is copied to the file this often: if parent and child are killed together, little is lost."""


class FlightRecorder:
    """Notes what runs, in a file that can be read after the process was killed.

    A note is one write of some hundred bytes, without any text once a name is known. The kernel keeps what was written
    when the process dies; only a crash of the machine can lose it. When a write fails, nothing is noted any more, and
    the file is removed: one that no longer changes would look like a process that hangs. Without a file nothing is
    written at all. In a short step the writes would take longer than all the rest: with `shared` memory there are few.
    """

    def __init__(self, shared: mmap.mmap | None = None) -> None:
        self._path: Path | None = None
        self._descriptor = -1
        self._is_shared = shared is not None
        self._written_ns = 0
        self._use(memoryview(bytearray(TOTAL_BYTES) if shared is None else shared)[:TOTAL_BYTES])
        self._stack: list[int] = []
        self._phase = 0
        self._counter = itertools.count(1)
        self._codes: dict[str, int] = {}
        self._num_names = 0
        self._code(_NO_ROOM)

    def _use(self, memory: memoryview) -> None:
        self._bytes = memory
        self._words = memory.cast("q")
        self._heads = [memory[8 * COUNT : 8 * (STACK + depth)] for depth in range(MAX_DEPTH + 1)]
        """What a note writes, by the number of modules that run."""

    @classmethod
    def create(cls, path: Path, *, shared: mmap.mmap | None = None) -> FlightRecorder:
        """Make the file, all of it allocated: a disk that fills up later does no harm. May raise an `OSError`.

        `shared` is memory of a parent that calls `save_shared_flight` when this process dies or hangs.
        """
        with naming(path), NewFile(path) as file:
            _allocate(file.descriptor, TOTAL_BYTES)
            recorder = cls(shared)
            words = recorder._words
            words[VERSION_WORD], words[PID], words[STEP] = FLIGHT_VERSION, os.getpid(), -1
            words[UNIX_NS], words[MONOTONIC_NS] = time.time_ns(), time.monotonic_ns()
            words[MAGIC_WORD] = FLIGHT_MAGIC
            os.pwrite(file.descriptor, recorder._bytes, 0)
            recorder._path, recorder._descriptor = path, _duplicate(file.descriptor)
        recorder._leave_file_to_parent()
        return recorder

    def enter(self, phase: str, site: str) -> None:
        """Note that a module begins to run."""
        codes, words, stack = self._codes, self._words, self._stack
        code = codes.get(site) or self._code(site)
        phase_code = codes.get(phase) or self._code(phase)
        depth = len(stack)
        if depth < MAX_DEPTH:
            words[STACK + depth] = code
        stack.append(code)
        words[DEPTH] = depth + 1
        words[PHASE] = self._phase = phase_code
        self._add(_ENTER | code)

    def leave(self, site: str) -> None:
        """Note that a module has ended; with it those inside that an exception ended before."""
        code, stack = self._codes.get(site), self._stack
        if code not in stack:
            return
        while stack.pop() != code:
            pass
        self._words[DEPTH] = len(stack)
        self._add(_LEAVE | code)

    def clear(self) -> None:
        """Note that no module runs any more: an exception has left the outermost one."""
        self._stack.clear()
        self._words[DEPTH] = 0
        if not self._is_shared:
            self._write(8 * COUNT, 8 * RECENT)

    def note(self, *, step: int, phase: str | None) -> None:
        """Note which step it is and what the loop does; None if that is not known."""
        code = 0 if phase is None else self._codes.get(phase) or self._code(phase)
        is_new_phase = code != self._phase
        if self._words[STEP] != step:
            self._words[STEP] = step
            self._add(_STEP | step, is_last=not is_new_phase)
        if is_new_phase:
            self._words[PHASE] = self._phase = code
            self._add(_PHASE | code)

    def mark(self, step: int, phase: str) -> None:
        """Do the same at less cost: in shared memory, a phase has no record of its own."""
        if not self._is_shared:
            self.note(step=step, phase=phase)
            return
        words = self._words
        words[PHASE] = self._phase = self._codes.get(phase) or self._code(phase)
        if words[STEP] != step:
            words[STEP] = step
            self._add(_STEP | step)

    def beat(self) -> None:
        """Note that the process makes progress when there is nothing else to note."""
        self._add(_PHASE | self._phase)

    def op(self, name: str) -> None:
        """Note that an op begins."""
        code = self._codes.get(name) or self._code(name)
        self._words[OP] = code << 1
        self._add(_OP | code)

    def op_done(self) -> None:
        """Note that the last op has ended."""
        self._words[OP] |= 1
        if not self._is_shared:
            self._write(8 * COUNT, 8 * RECENT)

    def close(self) -> None:
        """Let go of the file; what is noted afterwards is lost."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError, MemoryError):
                if self._is_shared:
                    os.pwrite(descriptor, self._bytes, 0)
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if self._is_shared:
            self._words[MAGIC_WORD] = 0  # nothing is left for the parent to write

    def _add(self, what: int, *, is_last: bool = True) -> None:
        """Add a record; one write is enough for two that come together."""
        count = next(self._counter)
        words = self._words
        place = count % NUM_RECENT
        slot = RECENT + 2 * place
        words[slot] = now = time.monotonic_ns()
        words[slot + 1] = what | self._phase << 40
        words[COUNT] = count
        if self._is_shared:
            if now - self._written_ns > _NS_BETWEEN_WRITES:
                self._written_ns = now
                self._write(8 * COUNT, NAMES_OFFSET)
        elif is_last:
            depth = len(self._stack)
            self._put(self._heads[depth if depth < MAX_DEPTH else MAX_DEPTH], 8 * COUNT)
        if place == NUM_RECENT - 1:
            self._keep_in_ring(count)

    def _write(self, begin: int, end: int) -> None:
        self._put(self._bytes[begin:end], begin)

    def _put(self, content: memoryview, place: int) -> None:
        if self._descriptor < 0:
            return
        try:
            os.pwrite(self._descriptor, content, place)
        except (OSError, MemoryError):
            self.close()
            if self._path is not None:
                with contextlib.suppress(OSError, MemoryError):
                    os.unlink(self._path)

    def _keep_in_ring(self, count: int) -> None:
        """Copy the recent records to their place in the ring."""
        first = RING + 2 * ((count - NUM_RECENT + 1) % NUM_RECORDS)
        self._words[first : first + 2 * NUM_RECENT] = self._words[RECENT:STACK]
        if not self._is_shared:
            self._write(8 * first, 8 * (first + 2 * NUM_RECENT))

    def _code(self, name: str) -> int:
        """Give a name its number, and put it into the file; when that is full, names share one number."""
        data = name.encode(errors="replace")[:MAX_NAME_BYTES]
        used = self._words[NAMES_USED]
        if used + 2 + len(data) > NAMES_BYTES:
            code = self._codes[_NO_ROOM]
        else:
            start = NAMES_OFFSET + used
            self._bytes[start : start + 2 + len(data)] = len(data).to_bytes(2, "little") + data
            self._words[NAMES_USED] = used + 2 + len(data)
            self._write(start, start + 2 + len(data))
            self._num_names = code = self._num_names + 1
        self._codes[name] = code
        return code

    def _leave_file_to_parent(self) -> None:
        """Close the file in processes forked from this one: it must hold notes of this process only."""
        itself = weakref.ref(self)

        def close_in_child() -> None:
            if (recorder := itself()) is not None:
                recorder._is_shared = False
                recorder._use(memoryview(bytearray(recorder._bytes)))
                recorder.close()

        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=close_in_child)


def _duplicate(descriptor: int) -> int:
    """Return another descriptor of the file, with a high number: scripts that close and reopen low ones exist."""
    for lowest in (900, 200):
        with contextlib.suppress(OSError):
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
    return os.dup(descriptor)


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        write_all(descriptor, bytes(size))
