"""The bytes of an untrusted file, with bounds checks on every access."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Self

from roundoff.errors import CheckpointError
from roundoff.words import size_text

_VALUE_BYTES = 90
"""The memory that a value of a JSON text, or a key, takes at most, in addition to its characters."""

MEMORY_FACTOR = 3
MEMORY_BYTES = 40 * 2**20
"""Reading a file may take this many times its size, and this much more, before it is an error: a small file that
describes billions of values is hostile. Costs are estimates, so what is really used may be a third more."""


class MemoryBudget:
    """How much memory reading a file, and what belongs to it, may still take."""

    def __init__(self, file_bytes: int) -> None:
        self.left = self.total = MEMORY_BYTES
        self.extend(file_bytes)

    def extend(self, file_bytes: int) -> None:
        """Add what another file of the same checkpoint may take."""
        self.left += MEMORY_FACTOR * file_bytes
        self.total += MEMORY_FACTOR * file_bytes

    def spend(self, num_bytes: int) -> None:
        """Account for memory before it is allocated; raises a `ValueError` if the file is not worth that much."""
        self.left -= num_bytes
        if self.left < 0:
            raise ValueError(
                f"reading it would take more than {size_text(self.total)} of memory, too much for its size"
            )


_WINDOW_BYTES = 2**16
"""Small pieces are read together: what a reader wants next is usually near."""


class OpenFile:
    """An open file, which is read by calls.

    They fail if the file became shorter in the meantime, where an access to a mapped file would kill the process.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._window = memoryview(b"")
        self._window_start = 0

    def __del__(self) -> None:
        os.close(self._descriptor)

    def at(self, place: int, length: int) -> memoryview:
        """Return bytes of the file."""
        start = place - self._window_start
        if start < 0 or start + length > len(self._window):
            window = bytearray(max(length, _WINDOW_BYTES))
            num_read = self._read(memoryview(window), place, needed=length)
            found = memoryview(window).toreadonly()[:num_read]
            if length > _WINDOW_BYTES:
                return found[:length]
            self._window, self._window_start, start = found, place, 0
        return self._window[start : start + length]

    def read_into(self, target: memoryview, place: int) -> None:
        """Fill the memory with bytes of the file."""
        self._read(target, place, needed=len(target))

    def _read(self, target: memoryview, place: int, *, needed: int) -> int:
        done = 0
        while done < needed:
            try:
                num_read = os.preadv(self._descriptor, [target[done:]], place + done)
            except OSError as error:
                raise cannot_read(self._path, f"{error.strerror}.") from error
            if not num_read:
                why = f"it became shorter while it was read: it now ends before byte {place + needed}."
                raise cannot_read(self._path, why, fix="try again when no program writes to it.")
            done += num_read
        return done


class FileBytes:
    """An open file, or a part of one, or bytes in memory.

    Offsets count from its own start; errors report the offset in the file.
    """

    __slots__ = ("_length", "_source", "budget", "path", "start")

    def __init__(
        self,
        path: Path,
        source: OpenFile | memoryview,
        *,
        start: int = 0,
        length: int | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.path = path
        self._source = source
        self.start = start
        self._length = length if length is not None else len(source) if isinstance(source, memoryview) else 0
        self.budget = budget or MemoryBudget(self._length)

    @classmethod
    def of_file(cls, path: Path, *, budget: MemoryBudget | None = None) -> Self:
        """Open a whole file; raises a `CheckpointError` if that fails or the file is empty.

        A file that is part of a larger checkpoint adds to that one's `budget`.
        """
        try:
            file = OpenFile(path, descriptor := os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            status = os.fstat(descriptor)
        except FileNotFoundError as error:
            raise CheckpointError.explain(f"There is no checkpoint '{path}'.", why="there is no such file.") from error
        except (OSError, ValueError) as error:
            raise cannot_read(path, f"{getattr(error, 'strerror', None) or error}.") from error
        if not stat.S_ISREG(status.st_mode):
            raise cannot_read(path, "it is a folder." if stat.S_ISDIR(status.st_mode) else "it is not a regular file.")
        if not status.st_size:
            raise cannot_read(path, "it is empty.")
        if budget is not None:
            budget.extend(status.st_size)
        return cls(path, file, length=status.st_size, budget=budget)

    def __len__(self) -> int:
        return self._length

    def error(self, why: str, *, at: int | None = None, fix: str | None = None) -> CheckpointError:
        """Return the error that says what is wrong, and at which byte of the file."""
        place = "" if at is None else f" at byte {self.start + at}"
        return cannot_read(self.path, f"{why}{place}.", fix=fix)

    def at(self, offset: int, length: int, what: str) -> memoryview:
        """Return `length` bytes at `offset`; raises an error about `what` if they exceed the file."""
        self._check(offset, length, what)
        begin = self.start + offset
        return (
            self._source[begin : begin + length]
            if isinstance(self._source, memoryview)
            else self._source.at(begin, length)
        )

    def __bytes__(self) -> bytes:
        return bytes(self.at(0, len(self), "it"))

    def beginning(self, length: int) -> bytes:
        """Return at most `length` bytes from its start."""
        return bytes(self.at(0, min(length, len(self)), "it"))

    def end(self, length: int) -> bytes:
        """Return at most `length` bytes from its end."""
        length = min(length, len(self))
        return bytes(self.at(len(self) - length, length, "it"))

    def part(self, offset: int, length: int, what: str) -> FileBytes:
        """Return a part of the file, which is not read yet; raises an error about `what` if it exceeds the file."""
        self._check(offset, length, what)
        return FileBytes(self.path, self._source, start=self.start + offset, length=length, budget=self.budget)

    def read_into(self, target: memoryview) -> None:
        """Fill memory of the same length with its bytes."""
        if isinstance(self._source, memoryview):
            target[:] = self._source[self.start : self.start + len(self)]
        else:
            self._source.read_into(target, self.start)

    def _check(self, offset: int, length: int, what: str) -> None:
        if offset < 0 or length < 0 or offset + length > self._length:
            left = max(0, self._length - offset) if offset >= 0 else 0
            raise self.error(f"{what} claims {length} bytes, but only {left} are left", at=max(0, offset))

    def neighbour(self, name: str) -> Path:
        """Return the path of another file in the same folder; raises an error if the name leads out of it."""
        if name in ("", "..") or Path(name).name != name or not name.isprintable():
            raise self.error(f"it names the file {name[:100]!a}, which is not in the same folder")
        return self.path.parent / name

    def spend(self, num_bytes: int) -> None:
        """Account for memory before it is allocated; raises a `CheckpointError` if it is too much for this file."""
        try:
            self.budget.spend(num_bytes)
        except ValueError as error:
            raise self.error(str(error)) from error

    def json(self, offset: int, length: int, what: str) -> Any:
        """Parse a part of the file as JSON; raises an error about `what` if it is not JSON, or costs too much."""
        text = bytes(self.at(offset, length, what))
        self.spend(2 * length + _VALUE_BYTES * sum(text.count(sign) for sign in b"[{,:"))
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"{what} is not JSON ({error})", at=offset) from error

    def number(self, offset: int, num_bytes: int, what: str) -> int:
        """Read an unsigned little-endian number."""
        return int.from_bytes(self.at(offset, num_bytes, what), "little")


def cannot_read(path: Path, why: str, *, fix: str | None = None) -> CheckpointError:
    """Return the error for a file that is broken, hostile or not a checkpoint, with unprintable characters escaped."""
    why = why if why.isprintable() else why.encode("unicode_escape").decode()
    return CheckpointError.explain(
        f"'{path}' cannot be read as a checkpoint.", why=why, fix=fix or "use another copy, or save it again."
    )
