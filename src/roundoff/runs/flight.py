"""The flight recorder: what a process is doing, in mapped memory that outlives any death of it."""

from __future__ import annotations

import itertools
import mmap
import os
import time
import weakref
from pathlib import Path

from roundoff.runs.flight_layout import (
    COUNT,
    DEPTH,
    FLIGHT_VERSION,
    KINDS,
    MAGIC,
    MAGIC_WORD,
    MAX_DEPTH,
    MAX_NAME_BYTES,
    MONOTONIC_NS,
    NAMES_BYTES,
    NAMES_OFFSET,
    NAMES_USED,
    NUM_RECORDS,
    OP,
    PHASE,
    PID,
    RING,
    STACK,
    STEP,
    TOTAL_BYTES,
    UNIX_NS,
    VERSION_WORD,
)

_ENTER, _LEAVE, _STEP, _PHASE, _OP = (kind << 32 for kind in range(len(KINDS)))
_NO_ROOM = "<unnamed>"


class FlightRecorder:
    """Notes what runs, in a file that can be read after the process was killed.

    A note takes about half a microsecond: a few stores into mapped memory, no system call and no text once a name is
    known. The kernel keeps the memory when the process dies; only a crash of the machine can lose it.
    """

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._bytes = memoryview(memory)
        self._words = self._bytes.cast("q")
        self._stack: list[int] = []
        self._phase = 0
        self._counter = itertools.count(1)
        self._codes: dict[str, int] = {}
        self._num_names = 0
        self._code(_NO_ROOM)

    @classmethod
    def create(cls, path: Path) -> FlightRecorder:
        """Make the file, all of it allocated: a disk that fills up later cannot hurt. May raise an `OSError`."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _allocate(descriptor, TOTAL_BYTES)
            memory = mmap.mmap(descriptor, TOTAL_BYTES)
        finally:
            os.close(descriptor)
        recorder = cls(memory)
        words = recorder._words
        words[VERSION_WORD], words[PID], words[STEP] = FLIGHT_VERSION, os.getpid(), -1
        words[UNIX_NS], words[MONOTONIC_NS] = time.time_ns(), time.monotonic_ns()
        words[MAGIC_WORD] = MAGIC  # last: a file without it was never begun
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

    def note(self, *, step: int, phase: str | None) -> None:
        """Note which step it is and what the loop does; None if that is not known."""
        if self._words[STEP] != step:
            self._words[STEP] = step
            self._add(_STEP | step)
        code = 0 if phase is None else self._codes.get(phase) or self._code(phase)
        if code != self._phase:
            self._words[PHASE] = self._phase = code
            self._add(_PHASE | code)

    def beat(self) -> None:
        """Note that the process gets on, where there is nothing else to note."""
        self._add(_PHASE | self._phase)

    def op(self, name: str) -> None:
        """Note that an op begins."""
        code = self._codes.get(name) or self._code(name)
        self._words[OP] = code << 1
        self._add(_OP | code)

    def op_done(self) -> None:
        """Note that the last op has ended."""
        self._words[OP] |= 1

    def close(self) -> None:
        """Let go of the file; what is noted afterwards is lost."""
        self._bytes = memoryview(bytearray(TOTAL_BYTES))
        self._words = self._bytes.cast("q")

    def _add(self, what: int) -> None:
        count = next(self._counter)
        slot = RING + 2 * (count % NUM_RECORDS)
        words = self._words
        words[slot] = time.monotonic_ns()
        words[slot + 1] = what | self._phase << 40
        words[COUNT] = count  # last: a record that is not counted does not exist

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
            self._num_names = code = self._num_names + 1
        self._codes[name] = code
        return code

    def _leave_file_to_parent(self) -> None:
        """See to it that a process forked from this one, which shares the memory, does not write into it."""
        itself = weakref.ref(self)

        def close_in_child() -> None:
            if (recorder := itself()) is not None:
                recorder.close()

        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=close_in_child)


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.write(descriptor, bytes(size))
