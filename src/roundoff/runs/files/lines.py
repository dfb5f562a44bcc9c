"""Files of JSON lines that grow at their end and survive being cut off there."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from roundoff.errors import RunFolderError
from roundoff.files import append_text, open_reading, read_bytes, write_atomically
from roundoff.runs.files.plain_json import JsonValue, from_json

T = TypeVar("T")

MAX_LINE_BYTES = 16 * 2**20
"""A longer line is refused."""

_TAIL_BYTES = 2**16


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Add `lines` at the end of the file in one write; the file is made if need be, its folder is not.

    The file is opened again each time, so that a folder that was removed is noticed.
    """
    append_text(path, "".join(f"{line}\n" for line in lines))


def drop_partial_line(path: Path) -> None:
    """Remove an incomplete last line, because the next one would be appended to it."""
    data = read_bytes(path)
    if not data.endswith(b"\n"):
        write_atomically(path, data[: data.rfind(b"\n") + 1])


def read_lines(path: Path, parse: Callable[[dict[str, JsonValue]], T]) -> Iterator[T]:
    """Yield what `parse` makes of the object on each line, in order; a missing file has none.

    A last line without its newline was cut off by the death of its writer and is dropped. Any other line that is not
    a JSON object, or that `parse` answers with a `ValueError`, is a `RunFolderError` that names file and line.
    """
    for number, line in enumerate(_raw_lines(path), start=1):
        try:
            item = parse(_object(line))
        except (ValueError, OverflowError, RecursionError) as error:
            if _is_cut_off(line):
                return
            raise _invalid_line_error(path, f"line {number}", error) from error
        yield item


def read_last_line(path: Path, parse: Callable[[dict[str, JsonValue]], T]) -> T | None:
    """Return what `parse` makes of the last line that is whole, without reading the ones before; None without any.

    A file whose last line is longer than 64 KiB is read from its start.
    """
    for line in reversed(_tail(path)):
        try:
            return parse(_object(line))
        except (ValueError, OverflowError, RecursionError) as error:
            if not _is_cut_off(line):
                raise _invalid_line_error(path, "last line", error) from error
    last = collections.deque(read_lines(path, parse), maxlen=1)
    return last[0] if last else None


def _raw_lines(path: Path) -> Iterator[bytes]:
    try:
        with os.fdopen(open_reading(path), "rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error.strerror}.") from error


def _tail(path: Path) -> list[bytes]:
    """Return the whole lines (and one that may be cut off) among the last 64 KiB."""
    try:
        with os.fdopen(open_reading(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).splitlines(keepends=True)
    except OSError:
        return []  # reading from the start says what is wrong
    return lines if size <= _TAIL_BYTES else lines[1:]


def _is_cut_off(line: bytes) -> bool:
    return not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES


def _object(line: bytes) -> dict[str, JsonValue]:
    value = from_json(line)
    if not isinstance(value, dict):
        raise ValueError("it does not hold a JSON object")
    return value


def _invalid_line_error(path: Path, place: str, error: Exception) -> RunFolderError:
    return RunFolderError.explain(
        f"'{path}' {place} cannot be read.",
        why=f"{error}.",
        fix="delete the line, or take the file from a copy of the run.",
    )
