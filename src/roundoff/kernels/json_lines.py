"""Reads JSON lines that all look like one known line, without making an object of each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from roundoff.kernels.load import compiled_kernels

Array = npt.NDArray[Any]

ANY_SIZE: Final = -1
_MAX_DEPTH = 4
_WORDS = 16
"""Of a field; csrc/json_lines.cpp names them."""


class LineKind(IntEnum):
    """What a key of a line holds."""

    INTEGER = 0
    NUMBER = 1
    BOOLEAN = 2
    TEXT = 3
    """One text for each line."""
    SKIPPED = 4
    """Anything; it is checked, and dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineField:
    """One key of every line, and what it holds: a value, or lists of values."""

    key: str
    kind: LineKind
    sizes: tuple[int, ...] = ()
    """The size of each level of lists; `ANY_SIZE` is a size that may differ from line to line, but not in a line."""
    has_nulls: bool = False

    @property
    def is_readable(self) -> bool:
        """Whether the compiled loop can look for such a key: it compares bytes, and knows no escapes."""
        plain = self.key.isascii() and self.key.isprintable() and not set(self.key) & set('"\\')
        return plain and len(self.sizes) <= _MAX_DEPTH


@dataclass(frozen=True, slots=True, kw_only=True)
class LineColumn:
    """What a key held in the lines that were read."""

    values: Array
    """The values; for texts their places in `texts`, for each line."""
    nulls: Array | None
    """Which of them were null, if any was."""
    texts: tuple[bytes, ...]
    """As they are written, without their quotes; not twice in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedLines:
    """The lines that looked as expected, up to the first that did not."""

    end: int
    """Where that one begins, in bytes."""
    sizes: Array
    """How many values each line has in its lists of any size; -1 without such lists."""
    columns: Sequence[LineColumn]

    def __len__(self) -> int:
        return len(self.sizes)


def can_scan_lines() -> bool:
    """Return whether there is a compiled loop for it; Python's own reader serves where there is none."""
    return hasattr(compiled_kernels(), "read_json_lines")


def scan_lines(data: bytes, begin: int, fields: Sequence[LineField], *, end: int | None = None) -> ScannedLines:
    """Read lines of valid UTF-8 as long as each has exactly these fields in this order.

    `end` is the end of `data`, which is the default, or just behind a newline. What a field holds is read as
    `json.loads` reads it. Integers of more than 18 digits, and numbers beyond the range of fp64, end it too.
    """
    kernels = compiled_kernels()
    assert kernels is not None
    assert all(field.is_readable for field in fields)
    end = len(data) if end is None else end
    assert end == len(data) or data[end - 1] == ord("\n")
    bytes_of_lines = np.frombuffer(data, dtype=np.uint8)[begin:end]
    num_lines = int(np.count_nonzero(bytes_of_lines == ord("\n"))) + 1
    capacity = int(np.count_nonzero(bytes_of_lines == ord(","))) + num_lines
    table = np.zeros((len(fields), _WORDS), dtype=np.int64)
    keys = [np.frombuffer(field.key.encode() + b"\0", dtype=np.uint8) for field in fields]
    values = [np.empty(0 if field.kind is LineKind.SKIPPED else capacity, dtype=np.int64) for field in fields]
    texts = [np.empty(2 * num_lines if field.kind is LineKind.TEXT else 0, dtype=np.int64) for field in fields]
    nulls = [np.empty(capacity if field.has_nulls else 0, dtype=bool) for field in fields]
    for nth, field in enumerate(fields):
        table[nth, :4] = _address(keys[nth]), len(field.key), field.kind, len(field.sizes)
        table[nth, 4 : 4 + len(field.sizes)] = field.sizes
        addresses = _address(values[nth]), _address(texts[nth]), _address(nulls[nth]) if field.has_nulls else 0
        room = num_lines if field.kind is LineKind.TEXT else len(values[nth])
        table[nth, 8:12] = *addresses, room
    sizes = np.empty(num_lines, dtype=np.int64)
    num_read, num_bytes = kernels.read_json_lines(
        _address(bytes_of_lines), end - begin, _address(table), len(fields), _address(sizes), num_lines
    )
    columns = []
    for nth, field in enumerate(fields):
        num_values, num_texts = table[nth, 12:14].tolist()
        found = values[nth][:num_values].copy()
        spans = (texts[nth][: 2 * num_texts] + begin).reshape(-1, 2).tolist()
        is_null = nulls[nth][:num_values].copy() if field.has_nulls else None
        columns.append(
            LineColumn(
                values=found.view(np.float64) if field.kind is LineKind.NUMBER else found,
                nulls=is_null if is_null is not None and is_null.any() else None,
                texts=tuple(data[first:last] for first, last in spans),
            )
        )
    return ScannedLines(end=begin + num_bytes, sizes=sizes[:num_read].copy(), columns=columns)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
