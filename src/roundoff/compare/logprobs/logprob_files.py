"""Reads tables of log-probabilities: Parquet (a file, or a folder of parts), JSON lines and npz.

Whatever a file claims is checked before memory is taken for it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from roundoff.compare.logprobs.logprob_lines import concat_columns, read_lines, read_objects, sample_columns
from roundoff.compare.logprobs.logprob_table import (
    MAX_TOKENS,
    WIDE,
    Array,
    EngineFacts,
    LogprobTable,
    build_table,
    known_column,
)
from roundoff.errors import CompareError, first_line
from roundoff.files import open_reading
from roundoff.runs.files.columns import Interned, Rows, Values
from roundoff.runs.files.parquet import ParquetFile, UnsupportedFile
from roundoff.words import size_text

SUFFIXES = (".parquet", ".jsonl", ".npz")
FACTS_FILE = "_facts.jsonl"
"""What the engine says about itself, in a folder of parts."""
_FREE_BYTES = 256 * 2**20
_SIZE_FACTOR = 20
"""A file that takes more memory than twenty times its size and 256 MB is refused."""
_BROKEN = (ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile, zlib.error, RecursionError, OverflowError)


def read_logprobs(path: Path | str) -> LogprobTable:
    """Read a table of log-probabilities.

    Raises:
        CompareError: there is no such file, it is damaged or too large, columns are missing, or values are impossible.
    """
    path = Path(path)
    readers = {".parquet": _read_parquet, ".jsonl": _read_lines, ".npz": _read_npz}
    if not path.exists():
        raise CompareError.explain(f"There is no '{path}'.", fix="name a table of log-probabilities.")
    if path.suffix not in readers:
        raise CompareError.explain(
            f"'{path}' is no table of log-probabilities.", why=f"such a table ends with {', '.join(SUFFIXES)}."
        )
    try:
        columns, facts = readers[path.suffix](path)
    except OSError as error:
        raise CompareError.explain(f"'{path}' cannot be read.", why=f"{error.strerror or error}.") from error
    except MemoryError as error:
        raise CompareError.explain(f"'{path}' does not fit into memory.", fix="compare a part of it.") from error
    except _BROKEN as error:
        raise CompareError.explain(
            f"'{path}' cannot be read.", why=f"it is cut short or damaged: {first_line(error)}."
        ) from error
    return build_table(str(path), columns, facts)


Columns = tuple[dict[str, Any], EngineFacts]


def _read_parquet(path: Path) -> Columns:
    if not path.is_dir():
        return _parquet_columns(path), EngineFacts()
    files = sorted(file for file in path.iterdir() if file.suffix == ".parquet")
    if not files:
        raise ValueError("the folder holds no part")
    facts, facts_file = EngineFacts(), path / FACTS_FILE
    for value in read_objects(facts_file) if facts_file.exists() else ():
        facts = facts.merge(facts_from(value))
    parts, num_rows = [], 0
    for file in files:
        parts.append(_parquet_columns(file))
        num_rows += len(parts[-1].get("token", ()))
        if num_rows > MAX_TOKENS:
            raise ValueError(f"it has more than {MAX_TOKENS} tokens")
    return concat_columns(parts), facts


def _parquet_columns(path: Path) -> dict[str, Any]:
    """Read the known columns of a file, by our reader, or by pyarrow where the file needs more than that can read."""
    with os.fdopen(open_reading(path), "rb") as file:
        try:
            parquet = ParquetFile(file, max_bytes=_max_bytes(file), row_bytes=4)
            known = [column for column in parquet.columns() if known_column(column.name)]
            rows = parquet.read(range(parquet.num_groups), known)
        except UnsupportedFile as error:
            return _with_pyarrow(path, file, reason=first_line(error))
    return _from_rows(rows)


def _from_rows(rows: Rows) -> dict[str, Any]:
    found: dict[str, Any] = {}
    wide: dict[str, list[tuple[int, Array]]] = {}
    for name, values in rows.columns.items():
        column = known_column(name)
        assert column is not None
        if column != "logprob" and values.is_null.any():
            raise ValueError(f"column '{name}' lacks values")
        if isinstance(values, Interned):
            found[column] = values if column == "sample" else values.to_list()
        elif column in WIDE:
            wide.setdefault(column, []).append((int(name.rpartition(".")[2]), values.array))
        else:
            found[column] = values.array
            if values.nulls is not None and column == "logprob":
                found["is_null"] = values.nulls
    for column, parts in wide.items():
        found[column] = np.stack([array for _, array in sorted(parts, key=lambda part: part[0])], axis=1)
    return found


def _with_pyarrow(path: Path, file: BinaryIO, *, reason: str) -> dict[str, Any]:
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet").ParquetFile(file)
    except ImportError as error:
        raise CompareError.explain(
            f"'{path}' needs pyarrow to be read.",
            why=f"{reason}, which roundoff does not read itself.",
            fix="pip install pyarrow, or write the table with roundoff.save_logprobs.",
        ) from error
    except Exception as error:  # pyarrow raises its own errors on a broken file
        raise ValueError(first_line(error)) from error
    metadata = parquet.metadata
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if metadata.num_rows > MAX_TOKENS or size > _max_bytes(file):
        raise ValueError(f"it claims {metadata.num_rows} rows of {size_text(size)}")
    try:
        names = [name for name in parquet.schema_arrow.names if known_column(name)]
        return _from_arrow(pyarrow, parquet.read(columns=names))
    except pyarrow.ArrowException as error:
        raise ValueError(first_line(error)) from error


def _from_arrow(pyarrow: Any, table: Any) -> dict[str, Any]:
    """Return the columns of a table of pyarrow; rows that hold lists are samples, and become one row for each token."""
    is_list = {name: pyarrow.types.is_list(table.schema.field(name).type) for name in table.column_names}
    by_column = {known_column(name): name for name in table.column_names}
    if not is_list.get(by_column.get("token", ""), False):
        rows: dict[str, Values | Interned] = {}
        for name in table.column_names:
            values = table.column(name)
            is_text = pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type)
            if is_text:
                rows[name] = Interned.of(values.to_pylist())
            elif is_list[name]:
                stacked = np.array(values.to_pylist())
                rows |= {f"{name}.{place}": Values(array=stacked[:, place]) for place in range(stacked.shape[1])}
            else:
                nulls = np.asarray(values.is_null()) if values.null_count else None
                array = np.asarray(values.fill_null(0) if nulls is not None else values)
                rows[name] = Values(array=array, nulls=nulls)
        return _from_rows(Rows(columns=rows, num_rows=table.num_rows))
    return _join_samples(table.to_pylist())


def _join_samples(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make columns of rows that each hold a sample."""
    parts, num_rows = [], 0
    for number, row in enumerate(rows):
        value = {known: item for name, item in row.items() if (known := known_column(name))}
        if not isinstance(value.get("token"), list):
            raise ValueError(f"row {number} has no list of tokens")
        parts += [sample_columns(number, value)] if value["token"] else []
        num_rows += len(value["token"])
        if num_rows > MAX_TOKENS:
            raise ValueError(f"it has more than {MAX_TOKENS} tokens")
    return concat_columns(parts) if parts else {"token": [], "logprob": [], "sample": []}


def _read_lines(path: Path) -> Columns:
    columns, all_facts = read_lines(path)
    facts = EngineFacts()
    for value in all_facts:
        facts = facts.merge(facts_from(value))
    return columns, facts


def _read_npz(path: Path) -> Columns:
    """Read arrays by name; the text in the array `facts` is about the engine."""
    with os.fdopen(open_reading(path), "rb") as file, _unsupported_zip(), zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        known = {name: info for name, info in members.items() if known_column(name) or name == "facts"}
        if sum(info.file_size for info in known.values()) > _max_bytes(file):
            raise ValueError("it claims to hold far more than its size")
        arrays = {name: _read_array(archive, info) for name, info in known.items()}
    facts = facts_from(json.loads(str(arrays.pop("facts")))) if "facts" in arrays else EngineFacts()
    return {column: array for name, array in arrays.items() if (column := known_column(name))}, facts


@contextlib.contextmanager
def _unsupported_zip() -> Iterator[None]:
    """Turn what zipfile raises for encrypted archives and other methods of compression into a `ValueError`."""
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:
        raise ValueError(first_line(error)) from error


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """Read an array whose header claims exactly the bytes that are there."""
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = header(file, max_header_size=10_000)
        num = int(np.prod(shape, dtype=object))
        if dtype.hasobject or num * dtype.itemsize > info.file_size:
            raise ValueError(f"'{info.filename}' is not an array of numbers with {num} elements")
        data = file.read(num * dtype.itemsize)
    array = np.frombuffer(data, dtype=dtype, count=num)
    return array.reshape(shape, order="F" if is_fortran else "C")


def _max_bytes(file: BinaryIO) -> int:
    return _SIZE_FACTOR * os.fstat(file.fileno()).st_size + _FREE_BYTES


def facts_from(value: Any) -> EngineFacts:
    """Read what an engine says about itself; a `ValueError` says what is wrong."""
    if not isinstance(value, dict):
        raise ValueError("its facts are not an object")
    texts = {name: value.get(name) for name in ("dtype", "head_dtype")}
    layers, weights = value.get("layers"), value.get("weights", {})
    is_valid = all(text is None or isinstance(text, str) for text in texts.values())
    is_valid &= layers is None or (isinstance(layers, int) and 0 < layers < 100_000)
    is_valid &= isinstance(weights, dict) and all(
        isinstance(prints, dict)
        and all(isinstance(each, list) and all(isinstance(x, int | float) for x in each) for each in prints.values())
        for prints in weights.values()
    )
    if not is_valid:
        raise ValueError("its facts are damaged")
    return EngineFacts(**texts, layers=layers, weights=weights)
