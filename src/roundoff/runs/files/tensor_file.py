"""Whole tensors in a safetensors file: written one after another, read each when it is requested.

They are written past the page cache where possible: copying hundreds of megabytes into it costs more processor time
than computing them did; a direct write costs next to none. It must be aligned, so the bytes go through one aligned
buffer.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from roundoff.errors import RunFolderError
from roundoff.files import NewFile, make_folder, naming, open_reading, write_atomically
from roundoff.runs.files.plain_json import from_json
from roundoff.tensor_header import MAX_HEADER_BYTES, TENSOR_DTYPES, TensorEntry, parse_entries

if TYPE_CHECKING:
    import torch

_BUFFER_BYTES = 2**20
_ALIGNMENT = 4096
_DIRECT = getattr(os, "O_DIRECT", 0)


class BulkFile:
    """Takes bytes in order, after room that is left for a header; `finish` writes the header and syncs the file."""

    def __init__(self, path: Path, *, room_for_head: int) -> None:
        self._size = room_for_head
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)  # anonymous memory begins at a page
        self._written = room_for_head // _ALIGNMENT * _ALIGNMENT
        self._filled = room_for_head - self._written
        self._file = _new_file(path)

    def append(self, content: memoryview) -> None:
        """Append `content`; its memory may be reused when this returns."""
        self._size += len(content)
        while content:
            taken = min(_BUFFER_BYTES - self._filled, len(content))
            self._buffer[self._filled : self._filled + taken] = content[:taken]
            self._filled += taken
            content = content[taken:]
            if self._filled == _BUFFER_BYTES:
                self._empty(_BUFFER_BYTES)

    def finish(self, head: bytes) -> None:
        """Write what is left, then `head` into the room at the front; sync the file and give it its name."""
        self._write_rest()
        _write_at(self._file.descriptor, memoryview(head), 0)
        self._file.commit()

    def content(self, start: int) -> Iterator[memoryview]:
        """Write what is left, and yield everything from `start` on."""
        self._write_rest()
        while chunk := os.pread(self._file.descriptor, _BUFFER_BYTES, start):
            yield memoryview(chunk)
            start += len(chunk)

    def discard(self) -> None:
        """Remove the file."""
        self._file.discard()

    def _write_rest(self) -> None:
        self._empty(-(-self._filled // _ALIGNMENT) * _ALIGNMENT)
        _go_through_the_cache(self._file.descriptor)
        os.ftruncate(self._file.descriptor, self._size)

    def _empty(self, num_bytes: int) -> None:
        with memoryview(self._buffer) as everything, everything[:num_bytes] as part:
            _write_at(self._file.descriptor, part, self._written)
        self._written += num_bytes
        self._filled = 0


def _new_file(path: Path) -> NewFile:
    try:
        return NewFile(path, flags=_DIRECT)
    except (
        OSError
    ):  # a file system without direct writes, or a folder that cannot be written: opening normally shows which
        return NewFile(path)


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
            content_hash: a 64-bit hash of the content; without it the tensor is always stored.
        """
        self._attempt(lambda: self._add(key, data, dtype, tuple(shape), content_hash))

    def close(self) -> None:
        """Complete the file."""
        if not self._is_done:
            self._attempt(self._finish)
        if not self._is_done:  # the run is no longer written
            self.discard()

    def discard(self) -> None:
        """Remove the file."""
        self._is_done = True
        self._held.clear()
        if self._bulk is not None:
            self._bulk.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
                make_folder(self._path.parent)
                self._bulk = BulkFile(self._path, room_for_head=8 + RESERVED_BYTES)
                self._bulk.append(memoryview(b"".join(self._held)))
                self._held.clear()
            self._bulk.append(content)

    def _finish(self) -> None:
        with self._removing_on_failure():
            if self._bulk is None:
                make_folder(self._path.parent)
                write_atomically(self._path, b"".join([self._header(), *self._held]))
                self._held.clear()
            else:
                self._finish_bulk(self._bulk, self._header(padded_to=8 + RESERVED_BYTES))
            self._is_done = True

    def _finish_bulk(self, bulk: BulkFile, header: bytes) -> None:
        """Put the header into the room left for it, or write the file once more where it outgrew that."""
        if len(header) == 8 + RESERVED_BYTES:
            bulk.finish(header)
            return
        grown = BulkFile(self._path, room_for_head=len(header))
        try:
            for chunk in bulk.content(8 + RESERVED_BYTES):
                grown.append(chunk)
            grown.finish(header)
        finally:
            grown.discard()
            bulk.discard()

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


class TensorFile(Mapping[str, npt.NDArray[Any]]):
    """The tensors of one file by key, as read-only arrays; each is read when it is requested.

    The file is not mapped: one that is cut short meanwhile is an error, not the death of the process.
    bfloat16 and the 8-bit floats, which numpy does not know, come as the uint16 or uint8 of their bits; `entry(key)`
    says what they are, and `torch(key)` gives them as torch tensors.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            with os.fdopen(open_reading(self.path), "rb") as file:
                self._entries, self.aliases = _read_header(file)
        except OSError as error:
            raise _invalid_file_error(self.path, error.strerror or str(error)) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise _invalid_file_error(self.path, str(error)) from error

    def __getitem__(self, key: str) -> npt.NDArray[Any]:
        array = self._read(key)
        array.flags.writeable = False
        return array

    def _read(self, key: str) -> npt.NDArray[Any]:
        entry = self.entry(key)
        array = np.empty(entry.shape, TENSOR_DTYPES[entry.dtype].numpy)
        try:
            with os.fdopen(open_reading(self.path), "rb") as file:
                file.seek(entry.begin)
                num_read = file.readinto(array.reshape(-1).view(np.uint8).data) if array.size else 0
        except OSError as error:
            raise _invalid_file_error(self.path, error.strerror or str(error)) from error
        if num_read != array.nbytes:
            raise _invalid_file_error(self.path, f"'{key}' was cut short after the file was opened")
        return array

    def __iter__(self) -> Iterator[str]:
        yield from self._entries
        yield from self.aliases

    def __len__(self) -> int:
        return len(self._entries) + len(self.aliases)

    def __contains__(self, key: object) -> bool:
        return key in self._entries or key in self.aliases

    def entry(self, key: str) -> TensorEntry:
        """Return dtype, shape and place of a tensor; a `KeyError` if there is none."""
        return self._entries[self.aliases.get(key, key)]

    def torch(self, key: str) -> torch.Tensor:
        """Return the tensor in its own dtype, on the CPU."""
        import torch

        dtype = getattr(torch, TENSOR_DTYPES[self.entry(key).dtype].torch)
        return torch.from_numpy(self._read(key)).view(dtype)


def _read_header(file: BinaryIO) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
        raise ValueError(f"its header claims {length} bytes, and the file has {size}")
    header: Any = from_json(file.read(length).rstrip(b" "))  # in a large file, a megabyte of padding
    entries, metadata = parse_entries(header, start=8 + length, file_size=size)
    aliases: Any = from_json(metadata.get("aliases", "{}"))
    for alias, key in aliases.items():
        if key not in entries or alias in entries:
            raise ValueError(f"'{alias}' is an alias of '{key}', which is not in the file")
    return entries, aliases


def _invalid_file_error(path: Path, why: str) -> RunFolderError:
    return RunFolderError.explain(f"'{path}' cannot be read.", why=f"{why}.", fix="take it from a copy of the run.")
