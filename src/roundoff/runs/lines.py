"""Files of JSON lines that grow at their end and survive being cut off there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from roundoff.errors import RunFolderError
from roundoff.runs.atomic import naming, write_all
from roundoff.runs.plain_json import JsonValue, from_json

T = TypeVar("T")

MAX_LINE_BYTES = 16 * 2**20
"""A longer line is refused."""


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Add `lines` at the end of the file in one write; the file is made if need be, its folder is not.

    The file is opened anew each time, so that a folder that was removed is noticed.
    """
    data = "".join(f"{line}\n" for line in lines).encode()
    with naming(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)


def read_lines(path: Path, parse: Callable[[dict[str, JsonValue]], T]) -> Iterator[T]:
    """Yield what `parse` makes of the object on each line, in order; a missing file has none.

    A last line without its newline was cut off by the death of its writer and is dropped. Any other line that
    is not a JSON object, or that `parse` answers with a `ValueError`, is a `RunFolderError` that names file and line.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error.strerror}.") from error
    with file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            is_whole = line.endswith(b"\n")
            try:
                item = parse(_object(line))
            except (ValueError, RecursionError) as error:
                if not is_whole and len(line) < MAX_LINE_BYTES:
                    return
                raise RunFolderError.explain(
                    f"'{path}' line {number} cannot be read.",
                    why=f"{error}.",
                    fix="delete the line, or take the file from a copy of the run.",
                ) from error
            yield item


def _object(line: bytes) -> dict[str, JsonValue]:
    value = from_json(line)
    if not isinstance(value, dict):
        raise ValueError("it does not hold a JSON object")
    return value
