"""Writes whole tensors to a safetensors file one after another, past the page cache where possible.

Copying hundreds of megabytes into the page cache costs more processor time than computing them did; a direct write
costs next to none. It must be aligned, so the bytes go through one aligned buffer.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from roundoff.runs.files.atomic import naming, temporary_name, write_atomically
from roundoff.runs.files.tensor_file import TENSOR_DTYPES

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
        """Append `content`; nothing of it is needed when this returns."""
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


TensorBytes: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[Any]
"""The elements of a tensor in memory, in row-major order."""

Attempt: TypeAlias = Callable[[Callable[[], None]], None]
"""Runs an action and decides what becomes of its failure."""

HELD_BYTES = 8 * 2**20
"""The header is first in the file and is known last: up to this much data waits in memory for it."""

RESERVED_BYTES = 2**20
"""Beyond that, this much room is left for the header and padded with spaces."""


class TensorWriter:
    """Writes one safetensors file; it is complete when the block ends, and absent if the block fails.

    The same content (dtype, shape, content hash) under a second key is stored once: the second key becomes an alias,
    listed in the file's metadata, that `TensorFile` resolves.
    """

    def __init__(self, path: Path, *, attempt: Attempt | None = None) -> None:
        self._path = path
        self._attempt = attempt or _run_now
        self._entries: dict[str, dict[str, Any]] = {}
        self._aliases: dict[str, str] = {}
        self._key_of_content: dict[tuple[str, tuple[int, ...], int], str] = {}
        self._held: list[bytes] = []
        self._num_bytes = 0
        self._bulk: BulkFile | None = None
        self._is_done = False

    def add(
        self, key: str, data: TensorBytes, *, dtype: str, shape: Sequence[int], content_hash: int | None = None
    ) -> None:
        """Append a tensor; its bytes are copied or written before this returns.

        Args:
            key: `phase/microbatch/site/op#n:output0`.
            data: the elements in row-major order; an array of any dtype, or anything with the bytes.
            dtype: as safetensors names it: F32, BF16, F8_E4M3, I64, BOOL, ...
            shape: empty for a scalar.
            content_hash: 64 bits that stand for the content; without it the tensor is always stored.
        """
        self._attempt(lambda: self._add(key, data, dtype, tuple(shape), content_hash))

    def close(self) -> None:
        """Complete the file."""
        if not self._is_done:
            self._attempt(self._finish)
        if not self._is_done:  # the run is no longer written
            self.discard()

    def discard(self) -> None:
        """Leave no file."""
        self._is_done = True
        self._held.clear()
        if self._bulk is not None:
            with contextlib.suppress(OSError):
                self._bulk.close()
            with contextlib.suppress(OSError):
                temporary_name(self._path).unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _add(self, key: str, data: TensorBytes, dtype: str, shape: tuple[int, ...], content_hash: int | None) -> None:
        assert not self._is_done, "the file is complete"
        if key in self._entries or key in self._aliases:
            raise ValueError(f"tensor '{key}' is already in {self._path}")
        if content_hash is not None:
            first = self._key_of_content.setdefault((dtype, shape, content_hash), key)
            if first != key:
                self._aliases[key] = first
                return
        content = _bytes_of(data)
        if dtype not in TENSOR_DTYPES:
            raise ValueError(f"tensor '{key}' has the unknown dtype '{dtype}'")
        if len(content) != math.prod(shape) * TENSOR_DTYPES[dtype].num_bytes:
            raise ValueError(f"tensor '{key}' has {len(content)} bytes, which is not {dtype} {list(shape)}")
        begin, self._num_bytes = self._num_bytes, self._num_bytes + len(content)
        self._entries[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, self._num_bytes]}
        self._append(content)

    def _append(self, content: memoryview) -> None:
        if self._bulk is None and self._num_bytes <= HELD_BYTES:
            self._held.append(bytes(content))
            return
        with self._removing_on_failure():
            if self._bulk is None:
                self._path.parent.mkdir(exist_ok=True)
                self._bulk = BulkFile(temporary_name(self._path), room_for_head=8 + RESERVED_BYTES)
                self._bulk.append(memoryview(b"".join(self._held)))
                self._held.clear()
            self._bulk.append(content)

    def _finish(self) -> None:
        with self._removing_on_failure():
            if self._bulk is None:
                self._path.parent.mkdir(exist_ok=True)
                write_atomically(self._path, b"".join([self._header(), *self._held]))
                self._held.clear()
            else:
                self._finish_bulk(self._bulk, self._header(padded_to=8 + RESERVED_BYTES))
                temporary_name(self._path).replace(self._path)
            self._is_done = True

    def _finish_bulk(self, bulk: BulkFile, header: bytes) -> None:
        """Put the header into the room left for it, or write the file once more where it outgrew that."""
        if len(header) == 8 + RESERVED_BYTES:
            bulk.finish(header)
            return
        bulk.finish(b"")
        grown = temporary_name(temporary_name(self._path))
        try:
            copy = BulkFile(grown, room_for_head=len(header))
            with temporary_name(self._path).open("rb", buffering=0) as file:
                file.seek(8 + RESERVED_BYTES)
                while chunk := file.read(2**20):
                    copy.append(memoryview(chunk))
            copy.finish(header)
            grown.replace(temporary_name(self._path))
        except BaseException:
            grown.unlink(missing_ok=True)
            raise

    def _header(self, *, padded_to: int = 0) -> bytes:
        """Return the length and the header, padded with spaces to a multiple of 8 and to at least `padded_to`."""
        metadata = {"__metadata__": {"aliases": json.dumps(self._aliases)}} if self._aliases else {}
        text = json.dumps({**metadata, **self._entries}, separators=(",", ":")).encode()
        length = max(-(-len(text) // 8) * 8, padded_to - 8)
        return length.to_bytes(8, "little") + text.ljust(length)

    @contextlib.contextmanager
    def _removing_on_failure(self) -> Iterator[None]:
        try:
            with naming(self._path):
                yield
        except BaseException:
            self.discard()
            raise


def _run_now(action: Callable[[], None]) -> None:
    action()


def _bytes_of(data: TensorBytes) -> memoryview:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")
