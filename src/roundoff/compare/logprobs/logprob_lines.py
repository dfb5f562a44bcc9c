"""Reads tables of log-probabilities from JSON lines: a token on each, or a sample with lists.

Python reads a line, and the compiled loop those after it that look the same. What is wrong with a line is found by
Python alone, so that the answer is the same with the loop and without.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from roundoff.compare.logprobs.logprob_table import MAX_TOKENS, PER_SAMPLE, Array, known_column
from roundoff.files import open_reading
from roundoff.kernels.json_lines import ANY_SIZE, LineField, LineKind, ScannedLines, can_scan_lines, scan_lines
from roundoff.runs.files.columns import Interned, concat_values
from roundoff.words import size_text

MAX_LINE_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**20
_ROWS_OF_PART = 4096
_MAX_WAIT = 1024
_KINDS = {"i": LineKind.INTEGER, "f": LineKind.NUMBER, "b": LineKind.BOOLEAN}


def read_lines(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return the columns of a file, and the facts about its engine; a `ValueError` says what is wrong."""
    parts = _ColumnParts()
    with os.fdopen(open_reading(path), "rb") as file:
        number, wait, num_misses = 0, 0, 0
        fields: tuple[LineField, ...] = ()
        for block in _blocks(file):
            can_scan, at = can_scan_lines() and len(block) <= MAX_LINE_BYTES and _is_utf8(block), 0
            while at < len(block):
                if can_scan and fields and wait == 0:
                    scanned = scan_lines(block, at, fields)
                    parts.add_scanned(number + 1, fields, scanned)
                    number, at = number + len(scanned), scanned.end
                    num_misses = 0 if len(scanned) else num_misses + 1
                    wait = min(2**num_misses, _MAX_WAIT) if at < len(block) else 0
                    continue
                end = block.find(b"\n", at) + 1 or len(block)
                number, wait = number + 1, max(wait - 1, 0)
                value = _object(number, block[at:end])
                at = end
                if value is not None:
                    parts.add_object(number, value)
                    if can_scan and wait == 0:
                        fields = _fields(value) or fields
    return parts.columns(), parts.facts


def read_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object on each line."""
    with os.fdopen(open_reading(path), "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if (value := _object(number, line)) is not None:
                yield value


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield whole lines, about 1 MB at a time; the last may lack its end, and so does one that is too long."""
    rest = b""
    while more := file.read(_BLOCK_BYTES):
        rest += more
        end = len(rest) if len(rest) > MAX_LINE_BYTES else rest.rfind(b"\n") + 1
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _is_utf8(block: bytes) -> bool:
    try:
        return block.isascii() or bool(block.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError:
        return False


def _object(number: int, line: bytes) -> dict[str, Any] | None:
    """Return the object on a line, None if it is empty; a last line that was cut off is an error, as any other."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"line {number} is longer than {size_text(MAX_LINE_BYTES)}")
    if line.isspace():
        return None
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"line {number} is not an object")
    return value


class _ColumnParts:
    """The columns of the lines so far."""

    def __init__(self) -> None:
        self.facts: list[Any] = []
        self._parts: list[dict[str, Any]] = []
        self._rows: list[dict[str, Any]] = []
        self._num_rows = 0
        self._first: tuple[int, set[str]] | None = None

    def add_object(self, number: int, line: Mapping[str, Any]) -> None:
        """Add what a line holds."""
        if "facts" in line:
            self.facts.append(line["facts"])
            return
        value = {known: item for name, item in line.items() if (known := known_column(name))}
        if isinstance(value.get("token"), list):
            part = sample_columns(number, value)
            self._check(number, part.keys() - {"is_null"})
            if value["token"]:  # an empty list is of no type
                self._add(part, len(value["token"]))
        else:
            self._check(number, set(value))
            self._rows.append(value)
            self._count(1)
            if len(self._rows) == _ROWS_OF_PART:
                self._flush()

    def add_scanned(self, number: int, fields: Sequence[LineField], scanned: ScannedLines) -> None:
        """Add the lines that the loop has read, the first of which has this number."""
        if len(scanned):
            part = _scanned_columns(number, fields, scanned)
            self._add(part, len(part["token"]) if "token" in part else len(scanned))

    def columns(self) -> dict[str, Any]:
        """Return the columns of all lines."""
        self._flush()
        return concat_columns(self._parts) if self._parts else {"token": [], "logprob": [], "sample": []}

    def _add(self, part: dict[str, Any], num_rows: int) -> None:
        self._flush()
        self._parts.append(part)
        self._count(num_rows)

    def _flush(self) -> None:
        if self._rows:
            self._parts.append(_to_arrays({name: [row[name] for row in self._rows] for name in self._rows[0]}))
            self._rows = []

    def _check(self, number: int, names: set[str]) -> None:
        self._first = self._first or (number, names)
        for name in sorted(names ^ self._first[1]):
            lacks_it = number if name in self._first[1] else self._first[0]
            raise ValueError(f"not every line has '{name}': line {lacks_it} does not")

    def _count(self, num_rows: int) -> None:
        self._num_rows += num_rows
        if self._num_rows > MAX_TOKENS:
            raise ValueError(f"it has more than {MAX_TOKENS} tokens")


def _fields(line: Mapping[str, Any]) -> tuple[LineField, ...]:
    """Return what lines that look like this one hold; nothing if the loop cannot read them, or it holds facts."""
    if "facts" in line:
        return ()
    is_sample = any(known_column(key) == "token" and isinstance(item, list) for key, item in line.items())
    fields = [_field(key, item, is_sample=is_sample) for key, item in line.items()]
    found = tuple(field for field in fields if field is not None and field.is_readable)
    known = [column for key in line if (column := known_column(key))]
    return found if len(found) == len(line) and len(set(known)) == len(known) else ()


def _field(key: str, item: Any, *, is_sample: bool) -> LineField | None:
    """Return what a key holds, None if that is nothing that the loop can read."""
    column = known_column(key)
    if column is None:
        return LineField(key=key, kind=LineKind.SKIPPED)
    if isinstance(item, str):
        return LineField(key=key, kind=LineKind.TEXT) if column == "sample" else None
    has_nulls = column == "logprob"
    if has_nulls:
        item = [0.0 if each is None else each for each in item] if isinstance(item, list) else item
        item = 0.0 if item is None else item
    try:
        array = np.array(item)
    except ValueError:  # lists of several lengths
        return None
    is_list = is_sample and array.ndim > 0
    if array.dtype.kind not in _KINDS or not array.size or (column == "sample" and array.dtype != np.int64):
        return None
    sizes = (ANY_SIZE, *array.shape[1:]) if is_list else array.shape
    return LineField(key=key, kind=_KINDS[array.dtype.kind], sizes=sizes, has_nulls=has_nulls)


def _scanned_columns(number: int, fields: Sequence[LineField], scanned: ScannedLines) -> dict[str, Any]:
    """Make columns of what the loop has read."""
    is_sample = any(ANY_SIZE in field.sizes for field in fields)
    sizes = scanned.sizes if is_sample else np.ones(len(scanned), dtype=np.int64)
    found: dict[str, Any] = {}
    if is_sample:
        places = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        lines = np.arange(number, number + len(scanned))
        found = {"sample": np.repeat(lines, sizes), "position": places}
    for field, column in zip(fields, scanned.columns, strict=True):
        name = known_column(field.key)
        if name is None:
            continue
        values = column.values.astype(bool) if field.kind is LineKind.BOOLEAN else column.values
        inner = [size for size in field.sizes if size != ANY_SIZE]
        values = values.reshape(-1, *inner) if inner else values
        if is_sample and ANY_SIZE not in field.sizes:
            values = np.repeat(values, sizes) + (places if name == "position" else 0)
        if field.kind is LineKind.TEXT:
            texts = Interned.of([json.loads(b'"' + text + b'"') for text in column.texts])
            found[name] = Interned(codes=texts.codes[values], values=texts.values)
            continue
        found[name] = values
        if column.nulls is not None:
            found["is_null"] = column.nulls
    return {name: _narrow(values) for name, values in found.items()}


def sample_columns(number: int, value: Mapping[str, Any]) -> dict[str, Any]:
    """Make columns of a sample whose tokens are a list; `number` names one without a name."""
    tokens = value["token"]
    found: dict[str, Any] = {"sample": [value.get("sample", number)] * len(tokens)}
    for column, item in value.items():
        if column == "sample":
            continue
        if column == "position" and isinstance(item, int):
            item = list(range(item, item + len(tokens)))
        if column in PER_SAMPLE and not isinstance(item, list):
            item = [item] * len(tokens)
        if not isinstance(item, list) or len(item) != len(tokens):
            raise ValueError(f"'{column}' of line {number} does not have {len(tokens)} entries, one for each token")
        found[column] = item
    found.setdefault("position", list(range(len(tokens))))
    return _to_arrays(found)


def _to_arrays(columns: dict[str, Any]) -> dict[str, Any]:
    logprobs = columns.get("logprob")
    if logprobs is not None and None in logprobs:
        columns["is_null"] = [value is None for value in logprobs]
        columns["logprob"] = [0.0 if value is None else value for value in logprobs]
    found: dict[str, Any] = {name: _narrow(_array(name, values)) for name, values in columns.items()}
    if "sample" in found and found["sample"].dtype.kind == "U":
        found["sample"] = Interned.of(columns["sample"])
    return found


def _array(name: str, values: Sequence[Any]) -> Array:
    try:
        return np.array(values)
    except ValueError as error:
        raise _uneven(name) from error


def _uneven(name: str) -> ValueError:
    return ValueError(f"not all lists in '{name}' have the same length")


def _narrow(values: Any) -> Any:
    """Return integers of 32 bits where they fit: a table has a row for each token."""
    if isinstance(values, Interned) or values.dtype != np.int64 or not values.size:
        return values
    return values.astype(np.int32) if values.min() >= -(2**31) and values.max() < 2**31 else values


def concat_columns(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join the columns of several parts, which must all have the same; texts are numbered anew."""
    names = {name for part in parts for name in part if name != "is_null"}
    for part in parts:
        lacking = names - part.keys()
        if lacking:
            raise ValueError(f"only some of it has '{min(lacking)}'")
    if any("is_null" in part for part in parts):
        for part in parts:
            part.setdefault("is_null", np.zeros(len(part["token"]), dtype=bool))
        names.add("is_null")
    found = {}
    for name in sorted(names - {"sample"}):
        if len({part[name].shape[1:] for part in parts}) > 1:
            raise _uneven(name)
        found[name] = np.concatenate([part[name] for part in parts])
    samples = [part["sample"] for part in parts if "sample" in part]
    if samples:
        found["sample"] = _concat_samples(samples)
    return found


def _concat_samples(samples: Sequence[Any]) -> Array | Any:
    if all(isinstance(part, Interned) for part in samples):
        return concat_values(samples)
    plain = [np.array(part.to_list()) if isinstance(part, Interned) else np.asarray(part) for part in samples]
    if any(part.dtype.kind not in "iu" for part in plain):
        plain = [part.astype(str) for part in plain]
    return np.concatenate(plain)
