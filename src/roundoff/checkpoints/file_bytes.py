"""The mapped bytes of an untrusted file, with bounds checks on every access."""

from __future__ import annotations

import mmap
import stat
from pathlib import Path
from typing import Self

from roundoff.errors import CheckpointError

NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Needed to map files larger than the memory privately; Python 3.11 has no constant for it."""


class FileBytes:
    """A mapped file, or a part of one. Offsets count from its own start; errors report the offset in the file.

    The mapping is private: tensors that share it can be written to without changing the file. It uses memory only for
    what is written, and is released with the last tensor that shares it.
    """

    def __init__(self, path: Path, view: memoryview, *, start: int = 0) -> None:
        self.path = path
        self.view = view
        self.start = start

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Map a whole file; raises a `CheckpointError` if that fails or the file is empty."""
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise cannot_read(
                    path, "it is a folder." if stat.S_ISDIR(status.st_mode) else "it is not a regular file."
                )
            if not status.st_size:
                raise cannot_read(path, "it is empty.")
            with path.open("rb") as file:
                mapped = mmap.mmap(
                    file.fileno(), 0, flags=mmap.MAP_PRIVATE | NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
                )
        except FileNotFoundError as error:
            raise CheckpointError.explain(f"There is no checkpoint '{path}'.", why="there is no such file.") from error
        except (OSError, ValueError) as error:
            raise cannot_read(path, f"{getattr(error, 'strerror', None) or error}.") from error
        return cls(path, memoryview(mapped))

    def __len__(self) -> int:
        return len(self.view)

    def broken(self, why: str, *, at: int | None = None, fix: str | None = None) -> CheckpointError:
        """Return the error that says what is wrong, and at which byte of the file."""
        place = "" if at is None else f" at byte {self.start + at}"
        return cannot_read(self.path, f"{why}{place}.", fix=fix)

    def at(self, offset: int, length: int, what: str) -> memoryview:
        """Return `length` bytes at `offset`; raises an error about `what` if they exceed the file."""
        if offset < 0 or length < 0 or offset + length > len(self.view):
            left = max(0, len(self.view) - offset) if offset >= 0 else 0
            raise self.broken(f"{what} claims {length} bytes, but only {left} are left", at=max(0, offset))
        return self.view[offset : offset + length]

    def part(self, offset: int, length: int, what: str) -> FileBytes:
        """Return a part of the file."""
        return FileBytes(self.path, self.at(offset, length, what), start=self.start + offset)

    def number(self, offset: int, num_bytes: int, what: str) -> int:
        """Read an unsigned little-endian number."""
        return int.from_bytes(self.at(offset, num_bytes, what), "little")


def cannot_read(path: Path, why: str, *, fix: str | None = None) -> CheckpointError:
    """Return the error for a file that is broken, hostile or not a checkpoint, with unprintable characters escaped."""
    why = why if why.isprintable() else why.encode("unicode_escape").decode()
    return CheckpointError.explain(
        f"'{path}' cannot be read as a checkpoint.", why=why, fix=fix or "use another copy, or save it again."
    )
