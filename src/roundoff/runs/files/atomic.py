"""Files that are complete or absent: written under a temporary name, fsynced, renamed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
"""Readers ignore names that end so; a writer that was killed leaves one behind."""


def temporary_name(path: Path) -> Path:
    """Return the name under which `path` is written until it is complete.

    >>> temporary_name(Path("runs/a/run.json")).name
    'run.json.tmp'
    """
    return path.with_name(path.name + TEMPORARY_SUFFIX)


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Make `path` hold exactly `data`, or leave it as it was.

    An `OSError` on the way carries the file's name, and the temporary file is removed.
    """
    temporary = temporary_name(path)
    with naming(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


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
