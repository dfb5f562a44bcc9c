"""Opens and makes files so that no one else's are harmed.

A new file gets a random name in its folder, is synced and then renamed: it is complete or absent, two processes never
share a temporary name, and a link in the way is replaced, not followed. Only regular files are read: a pipe or device
under a file's name would hang the reader.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Self

TEMPORARY_SUFFIX = ".tmp"
"""Readers ignore names that end like this; a writer that was killed leaves one."""

_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC


class NewFile:
    """A file under a temporary name: `commit` gives it its own, `discard` removes it.

    As a block it yields itself, commits at the end and discards on an exception.

    Args:
        path: the name that it will have; what is there until then stays.
        is_private: only the user may read it, whatever the umask says; otherwise the umask decides.
        flags: more flags for `os.open`.
    """

    def __init__(self, path: Path, *, is_private: bool = True, flags: int = 0) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
        mode = _PRIVATE_FILE if is_private else 0o666
        self.descriptor = os.open(self.temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | flags, mode)
        if is_private:
            _set_mode(self.descriptor, _PRIVATE_FILE)

    def commit(self) -> None:
        """Sync the file, close it, and rename it."""
        os.fsync(self.descriptor)
        self._close()
        os.replace(self.temporary, self.path)

    def discard(self) -> None:
        """Close and remove the file; a failure to do so is ignored."""
        with contextlib.suppress(OSError):
            self._close()
        with contextlib.suppress(OSError):
            os.unlink(self.temporary)

    def _close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.commit()
        except BaseException:
            self.discard()
            raise


def write_atomically(path: Path, data: bytes | memoryview, *, is_private: bool = True) -> None:
    """Make `path` hold exactly `data`, or leave it as it was; an `OSError` carries the file's name."""
    with naming(path), NewFile(path, is_private=is_private) as file:
        write_all(file.descriptor, data)


def write_output(path: Path, data: bytes, *, is_private: bool = False) -> None:
    """Write what the user requested to the place that they named: a file, or a device or pipe such as /dev/stdout."""
    if path.exists() and not path.is_file() and not path.is_dir():
        with naming(path), path.open("wb") as stream:
            stream.write(data)
    else:
        write_atomically(path, data, is_private=is_private)


def make_folder(path: Path, *, parents: bool = False) -> bool:
    """Make a folder that only the user may enter; return False if it is there already.

    With `parents` the folders above it are made where they are missing, as the umask says.
    """
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(path, _PRIVATE_FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise
        return False
    with contextlib.suppress(OSError):
        os.chmod(path, _PRIVATE_FOLDER)  # a umask may have taken even our own rights
    return True


def open_appending(path: Path) -> int:
    """Open a private file to append to it; it is made if need be. The caller closes the descriptor."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | _NO_FOLLOW, _PRIVATE_FILE)
    try:
        if os.fstat(_check_regular(descriptor, path)).st_size == 0:
            _set_mode(descriptor, _PRIVATE_FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def append_text(path: Path, text: str) -> None:
    """Add text at the end of a private file, which is made if need be, in one write."""
    with naming(path):
        descriptor = open_appending(path)
        try:
            write_all(descriptor, text.encode())
        finally:
            os.close(descriptor)


def open_reading(path: Path, *, writes: bool = False) -> int:
    """Open a regular file to read it, or write into it; an `OSError` says what else it is.

    The caller closes the descriptor.
    """
    try:
        descriptor = os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_NONBLOCK | _NO_FOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path)) from error
        raise
    try:
        return _check_regular(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, *, max_bytes: int | None = None) -> bytes:
    """Read a regular file; one of more than `max_bytes` is an `OSError`."""
    with os.fdopen(open_reading(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {max_bytes} are read", str(path))
        return file.read(size)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write every byte, also where the system takes fewer at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give every `OSError` of the block the name of the file it was about: a failed write has none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _check_regular(descriptor: int, path: Path) -> int:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def _set_mode(descriptor: int, mode: int) -> None:
    with contextlib.suppress(OSError):  # file systems without modes
        os.fchmod(descriptor, mode)
