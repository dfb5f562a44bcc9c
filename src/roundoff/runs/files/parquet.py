"""Parquet files, as far as the tables of a run need them: columns of numbers, bytes and texts in compressed pages.

A part is small, and reading it must be cheap and safe, so it is done here and not by a library of a hundred megabytes.
Whatever a file claims is checked before memory is taken for it; what is wrong with one is a `ValueError`, `KeyError`
or `IndexError`. Written are version 1 data pages, one for each column: any reader of Parquet reads them.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np

from roundoff.runs.files import parquet_encodings as encodings
from roundoff.runs.files.columns import Interned, Rows, Values, concat_values, no_values
from roundoff.runs.files.parquet_encodings import I64, Struct
from roundoff.runs.files.schema import Column, ColumnType, Table

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

_MAGIC = b"PAR1"
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DIFFERENCES, _RLE_DICTIONARY, _SPLIT = 0, 2, 3, 5, 8, 9
_UNCOMPRESSED, _ZSTD = 0, 6
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_TEXT, _BYTES = 6, 7
_PHYSICAL = {"int16": 1, "int32": 1, "int64": 2, "uint64": 2, "float32": 4, "float64": 5, "string": _TEXT}
_CONVERTED = {"string": 0, "uint64": 14, "int16": 16}
"""What a number or text is, where its physical type does not say it."""
_STORED = {1: "<i4", 2: "<i8", 4: "<f4", 5: "<f8"}

_MAX_FOOTER_BYTES = 512 * 2**10
_MAX_HEADER_BYTES = 64 * 2**10
_MAX_PAGES = 1000
_FREE_BYTES = 32 * 2**20
_SIZE_FACTOR = 3
_ROW_BYTES = 250
"""A file that takes more memory than three times its size and 32 MB is refused: ours are not compressed that well."""


def to_parquet(rows: Rows, table: Table) -> bytes:
    """Return the bytes of a file with these rows.

    Texts take a dictionary. Numbers have their bytes split into streams, where the high ones compress, also the empty
    half of a float64 that was a float32; a hash is noise in every byte. Columns of bytes stay as they are: polars and
    DuckDB read no split ones. Only the step has statistics, by which a reader skips whole parts. Every page has a
    checksum.
    """
    pieces, chunks, place, size = [_MAGIC], [], len(_MAGIC), 0
    for column in table.columns:
        pages, chunk = _write_column(rows[column.name], column, rows.num_rows, place)
        pieces.append(pages)
        place += chunk[7]
        chunks.append({2: I64(0), 3: chunk})
        size += chunk[6]
    group = {1: chunks, 2: I64(size), 3: I64(rows.num_rows)}
    root = {4: b"schema", 5: len(table.columns)}
    footer = encodings.encode_struct(
        {
            1: 2,
            2: [root, *map(_schema_element, table.columns)],
            3: I64(rows.num_rows),
            4: [group],
            6: b"roundoff",
            7: [{1: {}}] * len(table.columns),  # statistics are ordered as the type is
        }
    )
    return b"".join([*pieces, footer, len(footer).to_bytes(4, "little"), _MAGIC])


def _schema_element(column: Column) -> Struct:
    length = {} if column.num_bytes is None else {2: column.num_bytes}
    converted = {6: _CONVERTED[column.type]} if column.type in _CONVERTED else {}
    return {1: _physical(column), **length, 3: int(column.nullable), 4: column.name.encode(), **converted}


def _physical(column: Column) -> int:
    return _PHYSICAL.get(column.type, _BYTES)


def _write_column(values: Values | Interned, column: Column, num_rows: int, place: int) -> tuple[bytes, Struct]:
    """Return the pages of a column, and what the footer says about them."""
    present = ~values.is_null if column.nullable else None
    dictionary, size, statistics = b"", 0, {}
    if isinstance(values, Interned):
        values = values.without_unused()
        codes = values.codes if present is None else values.codes[present]
        width = max(len(values.values) - 1, 0).bit_length()
        texts = encodings.pack_texts(values.values)
        dictionary, size = _page(_DICTIONARY_PAGE, texts, {7: {1: len(values.values), 2: _PLAIN}})
        content, encoding = bytes([width]) + encodings.pack_codes(codes, width), _RLE_DICTIONARY
    else:
        array = values.array if present is None else values.array[present]
        array = array.astype(_STORED.get(_physical(column), array.dtype), copy=False)
        is_plain = column.type == "uint64" or column.num_bytes is not None
        content, encoding = (array.tobytes(), _PLAIN) if is_plain else (encodings.split_bytes(array), _SPLIT)
        if column.name == "step" and num_rows:
            statistics = {12: {3: I64(0), 5: array.max().tobytes(), 6: array.min().tobytes()}}
    if present is not None:
        levels = encodings.pack_codes(present, 1)
        content = len(levels).to_bytes(4, "little") + levels + content
    page, page_size = _page(_DATA_PAGE, content, {5: {1: num_rows, 2: encoding, 3: _RLE, 4: _RLE}})
    return dictionary + page, {
        1: _physical(column),
        2: [encoding, _RLE, _PLAIN],
        3: [column.name.encode()],
        4: _ZSTD,
        5: I64(num_rows),
        6: I64(size + page_size),
        7: I64(len(dictionary) + len(page)),
        9: I64(place + len(dictionary)),
        **({11: I64(place)} if dictionary else {}),
        **statistics,
    }


def _page(kind: int, content: bytes, detail: Struct) -> tuple[bytes, int]:
    """Return a page, and how many bytes it has without compression."""
    packed = zstd.compress(content, 1)
    checksum = zlib.crc32(packed)
    signed = checksum - 2**32 if checksum >= 2**31 else checksum
    header = encodings.encode_struct({1: kind, 2: len(content), 3: len(packed), 4: signed, **detail})
    return header + packed, len(header) + len(content)


class UnsupportedFile(ValueError):
    """A file that uses a part of Parquet which this reader does not know."""


class ParquetFile:
    """A file whose footer was read and checked; columns are read when they are requested.

    Args:
        file: opened for reading.
        max_bytes: how much its columns may take, decompressed.
        row_bytes: how much a row takes at least.
    """

    def __init__(self, file: BinaryIO, *, max_bytes: int | None = None, row_bytes: int = _ROW_BYTES) -> None:
        self._file = file
        self._size = file.seek(0, 2)
        tail = self._read(self._size - 8, 8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length > _MAX_FOOTER_BYTES:
            raise ValueError("it does not end as a Parquet file of a run does")
        footer, _ = encodings.decode_struct(self._read(self._size - 8 - length, length))
        self._schema: list[Struct] = _field(footer, 2, list)[1:]
        self._places = {_field(each, 4, bytes).decode(): place for place, each in enumerate(self._schema)}
        self._groups: list[Struct] = _field(footer, 4, list)
        self._allowed = _SIZE_FACTOR * self._size + _FREE_BYTES if max_bytes is None else max_bytes
        self._check_size(self._num_rows(range(self.num_groups)) * row_bytes)

    @property
    def num_groups(self) -> int:
        """How many row groups there are."""
        return len(self._groups)

    def columns(self) -> list[Column]:
        """Return the columns of a file that someone else may have written.

        Raises:
            UnsupportedFile: it has lists, types or compression that this reader does not know.
        """
        if any(5 in element for element in self._schema):
            raise UnsupportedFile("it holds lists or structures")
        for group in range(self.num_groups):
            if any(self._chunk(group, name).get(4) not in (_UNCOMPRESSED, _ZSTD) for name in self._places):
                raise UnsupportedFile("it is compressed by another method than zstd")
        types = {1: "int32", 2: "int64", 4: "float32", 5: "float64", _TEXT: "string"}
        found = []
        for element in self._schema:
            physical, name = _field(element, 1, int), _field(element, 4, bytes).decode()
            if physical not in types:
                raise UnsupportedFile(f"column '{name}' is of another type")
            kind = cast("ColumnType", types[physical])
            found.append(Column(name=name, type=kind, meaning="", nullable=element.get(3) == 1))
        return found

    def step_bounds(self, group: int) -> tuple[int, int]:
        """Return the first and last step of a row group, or of all that are possible if it does not say."""
        statistics = {1: b"", 2: b"", **_field({12: {}, **self._chunk(group, "step")}, 12, dict)}
        low, high = (_field(statistics, new if new in statistics else old, bytes) for new, old in ((6, 2), (5, 1)))
        if len(low) != 4 or len(high) != 4:
            return -(2**31), 2**31 - 1
        return int.from_bytes(low, "little", signed=True), int.from_bytes(high, "little", signed=True)

    def read(self, groups: Sequence[int], columns: Sequence[Column]) -> Rows:
        """Read columns of some row groups; a nullable one that the file lacks is null."""
        num_rows = self._num_rows(groups)
        known = [column.name for column in columns if column.name in self._places]
        chunks = [self._chunk(group, name) for name in known for group in groups]
        self._check_size(sum(_count(chunk, 6) for chunk in chunks))
        if sum(_count(chunk, 7) for chunk in chunks) > self._size:
            raise ValueError("its columns claim more bytes than it has")
        found = {}
        for column in columns:
            parts = [part for group in groups for part in self._pages(group, column)] if column.name in known else []
            values = concat_values(parts) if parts else no_values(column, num_rows)
            if not column.nullable and values.is_null.any():
                raise ValueError(f"column '{column.name}' lacks values")
            found[column.name] = values
        return Rows(columns=found, num_rows=num_rows)

    def _num_rows(self, groups: Iterable[int]) -> int:
        return sum(_count(self._groups[group], 3) for group in groups)

    def _check_size(self, claimed: int) -> None:
        if claimed > self._allowed:
            raise ValueError(f"it claims to hold {claimed} bytes in a file of {self._size}")

    def _read(self, place: int, size: int) -> bytes:
        if place < 0 or place + size > self._size:
            raise ValueError("it is shorter than it claims")
        self._file.seek(place)
        return self._file.read(size)

    def _chunk(self, group: int, name: str) -> Struct:
        return _field(_field(self._groups[group], 1, list)[self._places[name]], 3, dict)

    def _pages(self, group: int, column: Column) -> Iterator[Values | Interned]:
        """Yield the values of each page that a column has in a row group."""
        chunk, element = self._chunk(group, column.name), self._schema[self._places[column.name]]
        if (element.get(1), element.get(2)) != (_physical(column), column.num_bytes) or element.get(3) not in (0, 1):
            raise ValueError(f"column '{column.name}' has another type")
        content = self._read(_count(chunk, 11 if 11 in chunk else 9), _count(chunk, 7))
        num_left, room, place = self._num_rows([group]), _count(chunk, 6), 0
        dictionary: Values | Interned | None = None
        for _ in range(_MAX_PAGES):
            if not num_left:
                return
            header, length = encodings.decode_struct(content[place : place + _MAX_HEADER_BYTES])
            place += length
            page = content[place : place + _count(header, 3)]
            place += len(page)
            room -= _count(header, 2)
            if room < 0 or (4 in header and zlib.crc32(page) != _field(header, 4, int) % 2**32):
                raise ValueError(f"a page of column '{column.name}' is damaged")
            data = _decompress(page, _count(header, 2), codec=chunk.get(4))
            if header.get(1) == _DICTIONARY_PAGE and dictionary is None:
                num = _count(_field(header, 7, dict), 1)
                if num > num_left:
                    raise ValueError(f"the dictionary of column '{column.name}' has more values than the column")
                dictionary = _decode(data, _PLAIN, column, num, None)
            elif header.get(1) == _DATA_PAGE:
                detail = _field(header, 5, dict)
                num = _count(detail, 1)
                if not 0 < num <= num_left:
                    raise ValueError(f"column '{column.name}' has more values than rows")
                num_left -= num
                yield _decode_page(data, _count(detail, 2), column, num, dictionary, is_nullable=element[3] == 1)
            else:
                raise UnsupportedFile(f"column '{column.name}' has pages of another kind")
        raise ValueError(f"column '{column.name}' has too many pages")


def _decompress(page: bytes, size: int, *, codec: object) -> bytes:
    if codec not in (_UNCOMPRESSED, _ZSTD):
        raise UnsupportedFile("it is compressed by another method than zstd")
    if not size:
        return b""
    try:
        data = zstd.ZstdDecompressor().decompress(page, max_length=size) if codec == _ZSTD else page
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(data) != size:
        raise ValueError("a page is shorter than it claims")
    return data


def _decode_page(
    data: bytes, encoding: int, column: Column, num: int, dictionary: Values | Interned | None, *, is_nullable: bool
) -> Values | Interned:
    if not is_nullable:
        return _decode(data, encoding, column, num, dictionary)
    begin = 4 + int.from_bytes(data[:4], "little")
    present = encodings.unpack_codes(data[4:begin], 1, num).astype(bool)
    values = _decode(data[begin:], encoding, column, int(present.sum()), dictionary)
    # A row without a value takes the one in the place -1: null.
    places = np.where(present, np.cumsum(present) - 1, -1)
    return values.take(places) if present.all() else concat_values([values, no_values(column, 1)]).take(places)


def _decode(
    data: bytes, encoding: int, column: Column, num: int, dictionary: Values | Interned | None
) -> Values | Interned:
    """Return the values that a page holds; those that are null are not among them."""
    if encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY) and dictionary is not None:
        return dictionary.take(encodings.unpack_codes(data[1:], data[0], num))
    if column.dtype is None:
        if encoding != _PLAIN:
            raise UnsupportedFile(f"column '{column.name}' is encoded in another way")
        return Interned.of(encodings.unpack_texts(data, num))
    stored = np.dtype(_STORED.get(_physical(column), column.dtype))
    if encoding == _PLAIN:
        array = np.frombuffer(data, dtype=stored, count=num)
    elif encoding == _SPLIT:
        array = encodings.join_bytes(data, stored, num)
    elif encoding == _DIFFERENCES and stored.kind == "i":
        array = encodings.unpack_differences(data, num).astype(stored)
    else:
        raise UnsupportedFile(f"column '{column.name}' is encoded in another way")
    return Values(array=array.astype(column.dtype, copy=not array.flags.writeable))


def _field(fields: Any, number: int, kind: type[T]) -> T:
    value = fields.get(number) if isinstance(fields, dict) else None
    if not isinstance(value, kind):
        raise ValueError("its metadata is damaged")
    return value


def _count(fields: Struct, number: int) -> int:
    value = _field(fields, number, int)
    if value < 0:
        raise ValueError("its metadata is damaged")
    return value
