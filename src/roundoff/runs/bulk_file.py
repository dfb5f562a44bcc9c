"""A large file, written from front to back past the system's page cache where that is possible.

Copying hundreds of megabytes into the page cache costs more processor time than computing them did; a write that goes
straight to the disk costs next to none. It must be aligned, so the bytes go through one aligned buffer.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

_BUFFER_BYTES = 2**20
_ALIGNMENT = 4096
_DIRECT = getattr(os, "O_DIRECT", 0)


class BulkFile:
    """Takes bytes in order, after room that is left for a head; `finish` writes the head and makes all of it last."""

    def __init__(self, path: Path, *, room_for_head: int) -> None:
        self._path = path
        self._size = room_for_head
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)  # anonymous memory begins at a page
        self._written = room_for_head // _ALIGNMENT * _ALIGNMENT
        self._filled = room_for_head - self._written
        self._descriptor = _open(path)

    def append(self, content: memoryview) -> None:
        """Write `content` behind what is there; nothing of it is needed when this returns."""
        self._size += len(content)
        while content:
            taken = min(_BUFFER_BYTES - self._filled, len(content))
            self._buffer[self._filled : self._filled + taken] = content[:taken]
            self._filled += taken
            content = content[taken:]
            if self._filled == _BUFFER_BYTES:
                self._empty(_BUFFER_BYTES)

    def finish(self, head: bytes) -> None:
        """Write what is left, then `head` into the room at the front; sync and close."""
        self._empty(-(-self._filled // _ALIGNMENT) * _ALIGNMENT)
        _go_through_the_cache(self._descriptor)
        os.ftruncate(self._descriptor, self._size)
        _write_at(self._descriptor, memoryview(head), 0)
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Give the file up as it is."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _empty(self, num_bytes: int) -> None:
        with memoryview(self._buffer) as everything, everything[:num_bytes] as part:
            _write_at(self._descriptor, part, self._written)
        self._written += num_bytes
        self._filled = 0


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags | _DIRECT, 0o666)
    except OSError:  # a file system that insists on its cache, or a folder that cannot be written: this one tells
        return os.open(path, flags, 0o666)


def _write_at(descriptor: int, content: memoryview, offset: int) -> None:
    while content:
        try:
            done = os.pwrite(descriptor, content, offset)
        except OSError:
            if not _go_through_the_cache(descriptor):
                raise
            continue
        content, offset = content[done:], offset + done


def _go_through_the_cache(descriptor: int) -> bool:
    """Switch direct writing off; False if it was not on."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not flags & _DIRECT:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
    return True
