"""What we write others can read, what pyarrow wrote for older versions is read, and changed files are refused."""

import io
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roundoff.runs import EVENTS, EventColumns, Interned, ParameterColumns, Rows
from roundoff.runs.files import parquet_encodings as encodings
from roundoff.runs.files.parquet import ParquetFile, to_parquet
from roundoff.runs.files.schema import PARAMETERS, Table

TEXTS = [column.name for column in EVENTS.columns if column.type == "string"]
OLDER_VERSIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": TEXTS,
    "column_encoding": {
        column.name: "PLAIN"
        if column.type == "uint64"
        else "DELTA_BINARY_PACKED"
        if column.type.startswith("int")
        else "BYTE_STREAM_SPLIT"
        for column in EVENTS.columns
        if column.type != "string"
    },
    "write_statistics": ["step"],
    "write_page_checksum": True,
    "store_schema": False,
}
"""How versions that used pyarrow wrote a part."""


def events(num_rows: int, seed: int = 0) -> EventColumns:
    """Rows in which every column has its extremes, and the nullable ones have nulls in between."""
    rng = np.random.default_rng(seed)

    def integers(dtype: str) -> np.ndarray:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        values = rng.integers(low, high, num_rows, dtype=dtype, endpoint=True) >> rng.integers(0, 60, num_rows).astype(
            dtype
        )
        values[rng.random(num_rows) < 0.2] = rng.choice(np.array([low, high, 0], dtype=dtype))
        return values

    def floats(dtype: str) -> np.ndarray:
        values = rng.standard_normal(num_rows).astype(dtype)
        values[rng.random(num_rows) < 0.3] = rng.choice([np.inf, -np.inf, np.nan, -0.0])
        return values

    def texts(num: int, *, null: float = 0.0) -> Interned:
        codes = np.sort(rng.integers(0, num, num_rows)) if rng.random() < 0.5 else rng.integers(0, num, num_rows)
        codes[rng.random(num_rows) < null] = -1
        return Interned(codes=codes.astype(np.int32), values=[f"block.{i} é" for i in range(num)])

    columns: dict[str, Any] = {}
    for column in EVENTS.columns:
        is_masked = rng.random(num_rows) < 0.4
        if column.type == "string":
            columns[column.name] = texts(int(rng.choice([1, 2, 5, 300])), null=0.4 if column.nullable else 0.0)
        elif column.num_bytes is not None:
            values = rng.integers(0, 256, (num_rows, column.num_bytes), dtype=np.uint8)
            columns[column.name] = np.ma.array(values, mask=np.repeat(is_masked[:, None], column.num_bytes, axis=1))
        elif column.type.startswith("float"):
            values = floats(column.type)
            columns[column.name] = np.ma.array(values, mask=is_masked) if column.nullable else values
        else:
            columns[column.name] = integers(column.type)
    return EventColumns(**columns)


def read(data: bytes, table: Table = EVENTS) -> Rows:
    file = ParquetFile(io.BytesIO(data))
    return file.read(range(file.num_groups), table.columns)


def written_by_pyarrow(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def to_arrow(rows: Rows) -> pa.Table:
    """Return the rows as the Parquet file has them, as pyarrow reads it."""
    return pq.ParquetFile(io.BytesIO(to_parquet(rows, EVENTS)), page_checksum_verification=True).read()


@pytest.mark.parametrize("num_rows", [1, 2, 7, 8, 9, 127, 128, 129, 130, 1000])
def test_pyarrow_reads_what_we_write_and_so_do_we(num_rows: int):
    rows = events(num_rows, seed=num_rows).to_rows()
    assert repr(to_arrow(rows).to_pylist()) == repr(rows.to_list())
    assert repr(read(to_parquet(rows, EVENTS)).to_list()) == repr(rows.to_list())


def test_columns_without_any_value_are_read_by_both():
    number = np.array([3], dtype=np.int32)
    text = Interned.of(["fc"])
    columns = ParameterColumns(step=number, parameter=text, site=text, num_elements=number, l2=number, absmax=number)
    data = to_parquet(columns.to_rows(), PARAMETERS)
    assert (
        pq.read_table(io.BytesIO(data)).to_pylist() == read(data, PARAMETERS).to_list() == columns.to_rows().to_list()
    )


@pytest.mark.parametrize("num_rows", [1, 2, 33, 129, 500, 3000])
@pytest.mark.parametrize(
    "options",
    [
        OLDER_VERSIONS,
        OLDER_VERSIONS | {"row_group_size": 100, "data_page_size": 500},
        OLDER_VERSIONS | {"dictionary_pagesize_limit": 50},  # the dictionary is full: the rest are plain texts
        {"compression": "zstd"},
        {"compression": "none", "use_dictionary": False},
    ],
    ids=["older versions", "in pieces", "without room for texts", "defaults", "plain"],
)
def test_parts_that_pyarrow_wrote_are_read(options: dict[str, Any], num_rows: int):
    rows = events(num_rows, seed=num_rows).to_rows()
    assert repr(read(written_by_pyarrow(to_arrow(rows), **options)).to_list()) == repr(rows.to_list())


def test_only_the_requested_columns_are_read():
    data = to_parquet(events(50).to_rows(), EVENTS)
    file = ParquetFile(CountedReads(data))
    begin = CountedReads.num_bytes
    file.read([0], [EVENTS.columns[0]])
    assert CountedReads.num_bytes - begin < 400


class CountedReads(io.BytesIO):
    num_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        CountedReads.num_bytes += len(data)
        return data


def test_another_compression_is_named():
    data = written_by_pyarrow(to_arrow(events(5).to_rows()), compression="snappy")
    with pytest.raises(ValueError, match="compressed by another method than zstd"):
        read(data)


def test_a_column_of_another_type_is_named():
    table = pa.table({"step": pa.array([1.5])})
    with pytest.raises(ValueError, match="column 'step' has another type"):
        ParquetFile(io.BytesIO(written_by_pyarrow(table, compression="zstd"))).read([0], [EVENTS.columns[0]])


def test_a_page_with_another_checksum_is_refused():
    data = bytearray(to_parquet(events(50).to_rows(), EVENTS))
    data[60] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        read(bytes(data))


def test_changed_files_are_read_or_refused_also_where_no_checksum_notices():
    rows = events(150).to_rows()
    plain = OLDER_VERSIONS | {"compression": "none", "compression_level": None, "write_page_checksum": False}
    originals = [written_by_pyarrow(to_arrow(rows), **options) for options in (plain, {"compression": "none"})]
    rng = random.Random(0)
    num_refused = 0
    for _ in range(1500):
        data = bytearray(rng.choice(originals))
        footer = int.from_bytes(data[-8:-4], "little") + 8
        for _ in range(rng.choice([1, 1, 2, 8])):
            begin = 4 if rng.random() < 0.6 else len(data) - footer
            place = rng.randrange(begin, len(data) - 8)
            kind = rng.random()
            if kind < 0.5:
                data[place] ^= 1 << rng.randrange(8)
            elif kind < 0.8:
                data[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
            else:
                data[place : place + 10] = b"\xff" * 9 + b"\x01"
        try:
            found = read(bytes(data))
        except (ValueError, KeyError, IndexError):
            num_refused += 1
        else:
            assert {len(column.is_null) for column in found.columns.values()} == {found.num_rows}
    assert 300 < num_refused < 1500


def test_metadata_survives_and_what_is_cut_short_is_refused():
    value = {
        1: 5,
        2: encodings.I64(-(2**62)),
        3: b"ab" * 100,
        9: [b"x"] * 20,
        11: [{1: True, 2: False}, {}],
        14: [-1, 300],
    }
    data = encodings.encode_struct(value)
    assert encodings.decode_struct(data) == (value, len(data))
    for length in range(len(data)):
        with pytest.raises((ValueError, IndexError)):
            encodings.decode_struct(data[:length])


@pytest.mark.parametrize("data", [b"\x1c" * 100_000, b"\x19" * 100_000, b"\x19\xfc\xff\xff\xff\xff\x0f" + b"\0" * 99])
def test_nested_metadata_and_long_lists_are_refused(data: bytes):
    with pytest.raises(ValueError, match=r"nested too deeply|cut short"):
        encodings.decode_struct(data)
